"""The training loop, for every objective, on one CPU or many GPUs; it can be killed at any time and resumed.

Lightning Fabric starts the processes, places tensors, scales losses for fp16 and steps. The objective runs on
the unwrapped network; gradients are averaged over processes once per step (and after passes whose gradient an
objective reads). Every random number is a function of the seed, the step and the image, so a resumed run
equals the uninterrupted one bit for bit (except with fp16, whose loss scale is not saved).

    for each epoch, under its norm policy:
        for each batch:  rate -> objective (adds gradients) -> average -> clip -> step -> moving average
        validate, write a line of metrics, keep the best, save
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from trimtab import rng
from trimtab.data import Batch
from trimtab.norm.moments import widest
from trimtab.norm.synchronize import average
from trimtab.train._loop import checkpoint, runs
from trimtab.train._loop.callbacks import Callback, Event, first_nonfinite, signals
from trimtab.train._loop.result import chosen_network, current_network, update_average, validate
from trimtab.train._loop.runs import Run
from trimtab.train._loop.work import Work, norm_policy, parts_of
from trimtab.train.optimizers import rate


def run_epochs(work: Work, callbacks: Sequence[Callback]) -> Run:
    """Train until the epochs of the recipe, or its patience, are used up; return the finished run."""
    try:
        return _epochs(work, callbacks)
    finally:
        _restore_trainable(work, work.model)


def _epochs(work: Work, callbacks: Sequence[Callback]) -> Run:
    result: nn.Module | None = None
    with signals() as caught:
        while not work.over:
            epoch, done = divmod(work.progress.step, work.per_epoch)
            work.model.train()
            with norm_policy(work.recipe, work.model, epoch):
                for batch in work.loader.at(epoch, done):
                    values = _step(work, batch)
                    _notify(callbacks, "step", work, epoch, values)
                    within = work.progress.step % work.per_epoch  # the end of an epoch saves anyway
                    if within and work.asked_to_stop(caught):
                        work.stop(caught)
                    if within and work.progress.step % (work.recipe.checkpoint_steps or work.total) == 0:
                        work.save()
            result = _end_epoch(work, epoch, callbacks)
            if work.asked_to_stop(caught):
                work.stop(caught)
        return _finish(work, callbacks, result)


def _step(work: Work, batch: Batch) -> dict[str, float]:
    """Take one step of the optimizer; return the losses, averaged over processes."""
    fabric, recipe, step = work.fabric, work.recipe, work.progress.step
    torch.manual_seed(rng.key(recipe.seed, step, fabric.global_rank))  # for dropout
    trained = [p for group in work.optimizer.param_groups for p in group["params"]]

    def backward(loss: Tensor, last: bool) -> None:
        fabric.backward(loss / recipe.accumulate)
        if not last:
            average([p.grad for p in trained if p.grad is not None])

    for group in work.optimizer.param_groups:
        factor = rate(recipe.schedule, step, work.per_epoch, work.total)
        group["lr"] = recipe.optimizer.lr * factor * group["factor"]
    work.optimizer.zero_grad()
    losses_of_parts = []
    for x, y, ids in parts_of(work, batch):
        with fabric.autocast():
            losses_of_parts.append(
                work.objective(work.model, x, y, backward, rng.key(recipe.seed, step), ids)
            )
    average([p.grad for p in trained if p.grad is not None])

    wide = widest(work.fabric.device)
    means = {
        name: torch.stack([parts[name].to(wide) for parts in losses_of_parts]).mean()
        for name in losses_of_parts[0]
    }
    average(list(means.values()))
    losses = {name: float(mean) for name, mean in means.items()}
    if not all(map(math.isfinite, losses.values())):
        raise work.diverged(first_nonfinite(work.model, parts_of(work, batch)[0][0]))
    if recipe.clip is not None:
        fabric.clip_gradients(work.model, work.stepper, max_norm=recipe.clip, error_if_nonfinite=False)
    work.stepper.step()
    if recipe.ema is not None:
        update_average(work.ema, work.model, recipe.ema)
    work.progress.step += 1
    for name, value in losses.items():
        work.progress.sums[name] = work.progress.sums.get(name, 0.0) + value
    return losses


def _end_epoch(work: Work, epoch: int, callbacks: Sequence[Callback]) -> nn.Module:
    """Validate, write the metrics, keep the best network, save; return the current network."""
    recipe, progress = work.recipe, work.progress
    row: dict[str, float] = {"epoch": epoch, "step": progress.step}
    for name, total in progress.sums.items():
        row[name if name.endswith("loss") else f"loss_{name}"] = total / work.per_epoch
    progress.sums = {}
    result = current_network(work)
    if (epoch + 1) % recipe.validation.every == 0 or progress.step >= work.total:
        row |= validate(work.fabric, result, work.held_out, recipe)
        score = row.get(recipe.validation.choose)
        if score is not None and (progress.best is None or score > progress.best):
            progress.best, progress.waited = score, 0
            work.write_once(lambda: checkpoint.save_weights(work.run.best, result))
        elif score is not None:
            progress.waited += 1
    row |= _notify(callbacks, "epoch", work, epoch, row, result)
    if work.fabric.is_global_zero:
        progress.metrics_bytes = work.run.add_metrics(row, progress.metrics_bytes)
        progress.metrics_digest = work.run.metrics_digest(progress.metrics_bytes)
    work.save()
    return result


def _restore_trainable(work: Work, model: nn.Module) -> None:
    """Set `requires_grad` as it was before the run."""
    for name, p in model.named_parameters():
        p.requires_grad_(work.trainable.get(name, True))


def _finish(work: Work, callbacks: Sequence[Callback], last: nn.Module | None) -> Run:
    """Choose the network, write it, and return the run."""
    model = chosen_network(work, last).eval()
    _restore_trainable(work, model)
    _notify(callbacks, "end", work, work.epoch, {}, model)
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


def _notify(
    callbacks: Sequence[Callback],
    kind: str,
    work: Work,
    epoch: int,
    values: Mapping[str, float],
    model: nn.Module | None = None,
) -> dict[str, float]:
    """Call the callbacks in the first process; return what they add to the metrics of the epoch."""
    added: dict[str, float] = {}
    for callback in callbacks if work.fabric.is_global_zero else ():
        event = Event(kind, work.progress.step, work.total, epoch, {**values, **added}, model or work.model)
        added |= callback(event) or {}
    return added
