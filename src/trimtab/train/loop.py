"""The loop: one for every objective, on one CPU or many GPUs, that can be killed at any moment and go on.

Lightning Fabric starts the processes, places tensors, scales for narrow formats and steps. The objective runs
on the bare network; gradients are averaged over processes once per step (and after passes whose gradient an
objective reads). Every random number is a function of the seed, the step and the image, so a resumed run
repeats the uninterrupted one bit for bit (but for fp16, whose loss scale starts anew).

    for each epoch, under its norm policy:
        for each batch:  rate -> objective (adds gradients) -> average -> clip -> step -> moving average
        validate, write a line of metrics, keep the best, save
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from trimtab import draws, norm
from trimtab.data import Batch
from trimtab.norm.moments import widest
from trimtab.train import checkpoint, runs
from trimtab.train.checkpoint import Progress
from trimtab.train.ema import average_of, chosen, follow, result_of
from trimtab.train.optimise import optimiser_for, rate
from trimtab.train.processes import average, companions
from trimtab.train.recipe import Recipe, read_recipe
from trimtab.train.runs import Run
from trimtab.train.start import (
    Engine,
    alike,
    fingerprint,
    loader_for,
    named,
    network,
    prepared,
    training_sets,
)
from trimtab.train.validate import validate
from trimtab.train.watch import Callback, Diverged, Event, Stopped, culprit, signals
from trimtab.train.work import Work, norm_policy, parts_of
from trimtab.types import BadInput


def fit(
    model: nn.Module | str | None = None,
    data: Any = None,
    recipe: Recipe | Mapping[str, Any] | str | Path | None = None,
    folder: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    engine: Engine | None = None,
) -> Run:
    """Train as the recipe says; what is given as `model` and `data` stands in for what it names.

    The run's folder must be new. A run that was interrupted is continued by `resume`.
    """
    recipe = recipe if isinstance(recipe, Recipe) else read_recipe({} if recipe is None else recipe)
    if model is not None:
        recipe = replace(recipe, model=named(model))
    if data is not None:
        recipe = replace(recipe, data=replace(recipe.data, name=named(data)))
    recipe = read_recipe(runs.plain_recipe(recipe))  # as its file says it, which a resumed run goes by
    fabric = (engine or Engine()).start(recipe.precision)
    run = _created(fabric, recipe, folder)
    with torch.random.fork_rng(enabled=True), companions(run.folder):
        work = None
        try:
            work = _start(fabric, run, model, data)
            _save(work)
            return _train(work, callbacks)
        except BadInput as problem:
            begun = work is not None and work.progress.step > 0
            kept = isinstance(problem, Diverged) and run.last.exists()
            if fabric.is_global_zero and not (begun or kept):
                runs.withdraw(run)
            raise


def resume(
    folder: str | Path,
    model: nn.Module | str | None = None,
    data: Any = None,
    callbacks: Sequence[Callback] = (),
    engine: Engine | None = None,
) -> Run:
    """Go on with the run in a folder, from its last checkpoint, as if it had never stopped."""
    run = runs.existing(folder)
    if not run.last.exists():
        raise BadInput(f"{folder} has no checkpoint: the run ended before its first one, so start it again")
    fabric = (engine or Engine()).start(run.recipe.precision)
    known = checkpoint.recipe_of(run.last)
    if known and known != run.recipe.digest:
        raise BadInput(
            f"{run.folder / 'recipe.yaml'} is not as the run began with it; put it back or start anew"
        )
    with torch.random.fork_rng(enabled=True), companions(run.folder):
        work = _start(fabric, run, model, data)
        progress = checkpoint.load(run.last, work.model, work.optimiser, work.ema)
        _check_metrics(run, progress)
        _check_data(run, progress.data, work.progress.data)
        work.progress = replace(progress, data=work.progress.data, recipe=work.progress.recipe)
        return _train(work, callbacks)


def _check_metrics(run: Run, progress: Progress) -> None:
    known = progress.metrics_digest
    if known and run.metrics_digest(progress.metrics_bytes) != known:
        raise BadInput(f"{run.folder / 'metrics.jsonl'} is not as the run left it; put it back or start anew")


def _check_data(run: Run, known: str, found: str) -> None:
    if known and found != known:
        raise BadInput(
            f"the run in {run.folder} began with other training images ({known[:8]}, found {found[:8]}); "
            "give resume the data that it began with, or start anew"
        )


def _created(fabric: Fabric, recipe: Recipe, folder: str | Path | None) -> Run:
    """The run's folder, made by the first process; if that fails, all of them stop."""
    made: Path | BadInput | None = None
    if fabric.is_global_zero:
        try:
            made = runs.create(recipe, folder).folder
        except BadInput as problem:
            made = problem
    made = fabric.broadcast(made)
    if not isinstance(made, Path):
        assert made is not None
        raise made
    return Run(made, recipe)


def _start(fabric: Fabric, run: Run, model: nn.Module | str | None, data: Any) -> Work:
    recipe = run.recipe
    train_set, held_out = training_sets(data, recipe)
    model = fabric.to_device(network(model, recipe, train_set))
    trainable = {name: p.requires_grad for name, p in model.named_parameters()}
    model = alike(fabric, prepared(model, recipe))
    branch, there = recipe.validation.branch, norm.branches(model) or ("main",)
    if held_out is not None and branch not in there:
        raise BadInput(f"validation.branch: there is no branch {branch!r}; this model has {', '.join(there)}")
    optimiser = optimiser_for(model.parameters(), recipe.optimiser)
    ema = average_of(model) if recipe.ema is not None else {}
    if recipe.compile is not None:
        if recipe.compile not in torch.compiler.list_backends(exclude_tags=()):
            raise BadInput(f"torch has no compiler {recipe.compile!r}; compile: inductor is the usual one")
        model.compile(backend=recipe.compile)
    stepper = fabric.setup_optimizers(optimiser)
    loader = loader_for(fabric, train_set, recipe)
    progress = Progress(data=fingerprint(train_set), recipe=recipe.digest)
    return Work(fabric, run, model, optimiser, stepper, loader, held_out, ema, trainable, progress)


def _train(work: Work, callbacks: Sequence[Callback]) -> Run:
    try:
        return _epochs(work, callbacks)
    finally:
        _trainable_again(work, work.model)


def _epochs(work: Work, callbacks: Sequence[Callback]) -> Run:
    result: nn.Module | None = None
    with signals() as caught:
        while not work.over:
            epoch, done = divmod(work.progress.step, work.per_epoch)
            work.model.train()
            with norm_policy(work.recipe, work.model, epoch):
                for batch in work.loader.at(epoch, done):
                    values = _step(work, batch)
                    _tell(callbacks, "step", work, epoch, values)
                    within = work.progress.step % work.per_epoch  # at the end of an epoch its end saves
                    if within and _asked_to_stop(work, caught):
                        _stop(work, caught)
                    if within and work.progress.step % (work.recipe.checkpoint_steps or work.total) == 0:
                        _save(work)
            result = _end_epoch(work, epoch, callbacks)
            if _asked_to_stop(work, caught):
                _stop(work, caught)
        return _finish(work, callbacks, result)


def _step(work: Work, batch: Batch) -> dict[str, float]:
    """One step of the optimiser; the losses, averaged over processes."""
    fabric, recipe, step = work.fabric, work.recipe, work.progress.step
    torch.manual_seed(draws.key(recipe.seed, step, fabric.global_rank))  # for drop-out
    trained = [p for group in work.optimiser.param_groups for p in group["params"]]

    def backward(loss: Tensor, last: bool) -> None:
        fabric.backward(loss / recipe.accumulate)
        if not last:
            average([p.grad for p in trained if p.grad is not None])

    for group in work.optimiser.param_groups:
        group["lr"] = recipe.optimiser.lr * rate(recipe.schedule, step, work.per_epoch, work.total)
    work.optimiser.zero_grad()
    found = []
    for x, y, ids in parts_of(work, batch):
        with fabric.autocast():
            found.append(work.objective(work.model, x, y, backward, draws.key(recipe.seed, step), ids))
    average([p.grad for p in trained if p.grad is not None])

    wide = widest(work.fabric.device)
    means = {name: torch.stack([parts[name].to(wide) for parts in found]).mean() for name in found[0]}
    average(list(means.values()))
    losses = {name: float(mean) for name, mean in means.items()}
    if not all(map(math.isfinite, losses.values())):
        raise _diverged(work, culprit(work.model, parts_of(work, batch)[0][0]))
    if recipe.clip is not None:
        fabric.clip_gradients(work.model, work.stepper, max_norm=recipe.clip, error_if_nonfinite=False)
    work.stepper.step()
    if recipe.ema is not None:
        follow(work.ema, work.model, recipe.ema)
    work.progress.step += 1
    for name, value in losses.items():
        work.progress.sums[name] = work.progress.sums.get(name, 0.0) + value
    return losses


def _end_epoch(work: Work, epoch: int, callbacks: Sequence[Callback]) -> nn.Module:
    """Validate, write the epoch's line, keep the best network, save; the network as it is now."""
    recipe, progress = work.recipe, work.progress
    row: dict[str, float] = {"epoch": epoch, "step": progress.step}
    for name, total in progress.sums.items():
        row[name if name.endswith("loss") else f"loss_{name}"] = total / work.per_epoch
    progress.sums = {}
    result = result_of(work)
    if (epoch + 1) % recipe.validation.every == 0 or progress.step >= work.total:
        row |= validate(work.fabric, result, work.held_out, recipe)
        score = row.get(recipe.validation.choose)
        if score is not None and (progress.best is None or score > progress.best):
            progress.best, progress.waited = score, 0
            _written(work, lambda: checkpoint.save_weights(work.run.best, result))
        elif score is not None:
            progress.waited += 1
    row |= _tell(callbacks, "epoch", work, epoch, row, result)
    if work.fabric.is_global_zero:
        progress.metrics_bytes = work.run.add_metrics(row, progress.metrics_bytes)
        progress.metrics_digest = work.run.metrics_digest(progress.metrics_bytes)
    _save(work)
    return result


def _trainable_again(work: Work, model: nn.Module) -> None:
    for name, p in model.named_parameters():
        p.requires_grad_(work.trainable.get(name, True))


def _finish(work: Work, callbacks: Sequence[Callback], last: nn.Module | None) -> Run:
    """Choose the result and write it."""
    model = chosen(work, last).eval()
    _trainable_again(work, model)
    _tell(callbacks, "end", work, work.epoch, {}, model)
    run = Run(work.run.folder, work.recipe, model)
    if work.fabric.is_global_zero:
        run = runs.finish(
            run,
            model,
            {
                "recipe": runs.plain_recipe(work.recipe),
                "steps": work.progress.step,
                "epoch": run.chosen.get("epoch"),
            },
        )
    work.fabric.barrier()
    return run


def _save(work: Work) -> None:
    """Write the checkpoint."""
    how = (work.progress, work.model, work.optimiser, work.ema)
    _written(work, lambda: checkpoint.save(work.run.last, *how))


def _written(work: Work, write: Callable[[], None]) -> None:
    """Write in the first process; if that fails, all of them stop."""
    problem: BadInput | None = None
    if work.fabric.is_global_zero:
        try:
            write()
        except checkpoint.NotFinite as broken:
            problem = _diverged(work, f"{str(broken)!r} is no longer finite")
        except BadInput as failed:
            problem = failed
    problem = work.fabric.broadcast(problem)
    if problem is not None:
        raise problem


def _diverged(work: Work, why: str) -> Diverged:
    cure = "lower the learning rate, warm up or clip"
    saved = f"the last good checkpoint is {work.run.last}; {cure}"
    return Diverged(f"training broke in step {work.progress.step}: {why}; {saved}")


def _asked_to_stop(work: Work, caught: list[int]) -> bool:
    """Whether any process got a signal; all of them agree."""
    asked = torch.tensor([float(bool(caught))], device=work.fabric.device)
    average([asked])
    return bool(asked > 0)


def _stop(work: Work, caught: list[int]) -> None:
    _save(work)
    raise Stopped(128 + (caught[0] if caught else signal.SIGTERM), work.run.folder)


def _tell(
    callbacks: Sequence[Callback],
    kind: str,
    work: Work,
    epoch: int,
    values: Mapping[str, float],
    model: nn.Module | None = None,
) -> dict[str, float]:
    """Call the callbacks, in the first process; what they have to add to an epoch's metrics."""
    added: dict[str, float] = {}
    for callback in callbacks if work.fabric.is_global_zero else ():
        event = Event(kind, work.progress.step, work.total, epoch, {**values, **added}, model or work.model)
        added |= callback(event) or {}
    return added
