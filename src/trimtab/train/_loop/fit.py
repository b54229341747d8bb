"""Start or resume a run: its folder, network, images and state; then train its epochs (see `loop`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from trimtab import norm
from trimtab.norm.synchronize import world_size
from trimtab.runtime import require_usable
from trimtab.train._loop import checkpoint, runs, start
from trimtab.train._loop.callbacks import Callback, Diverged
from trimtab.train._loop.checkpoint import TrainingState
from trimtab.train._loop.loop import run_epochs
from trimtab.train._loop.result import initial_average
from trimtab.train._loop.runs import Run
from trimtab.train._loop.work import Work
from trimtab.train.optimizers import optimizer_for
from trimtab.train.recipe import Recipe, read_recipe
from trimtab.types import BadInput


def fit(
    model: nn.Module | str | None = None,
    data: Any = None,
    recipe: Recipe | Mapping[str, Any] | str | Path | None = None,
    folder: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    engine: start.Engine | None = None,
) -> Run:
    """Train a network by a recipe. An interrupted run is resumed by `resume`.

    Args:
        model: Replaces the model of the recipe: a module, or a name as in `models.load`.
        data: Replaces the images of the recipe: a set, a DataLoader of (image, label), or a name.
        recipe: A recipe, the name of a shipped one, the path of a YAML file, or a mapping of its keys.
        folder: Folder of the run, without a run in it; a new one below ./runs if not given.
        callbacks: Called with an `Event` after every step and epoch, and at the end.
        engine: Accelerator and processes; what is available if not given.
    """
    recipe = recipe if isinstance(recipe, Recipe) else read_recipe({} if recipe is None else recipe)
    if model is not None:
        recipe = replace(recipe, model=start.name_of(model))
    if data is not None:
        recipe = replace(recipe, data=replace(recipe.data, name=start.name_of(data)))
    recipe = read_recipe(runs.plain_recipe(recipe))  # as written to its file, from which the run is resumed
    fabric = (engine or start.Engine()).start(recipe.precision)
    run = _create(fabric, recipe, folder)
    with torch.random.fork_rng(enabled=True), _translate_lost_process(run.folder):
        work = None
        try:
            work = _start(fabric, run, model, data)
            work.save()
            return run_epochs(work, callbacks)
        except BadInput as problem:
            started = work is not None and work.progress.step > 0
            saved = isinstance(problem, Diverged) and run.last.exists()
            if fabric.is_global_zero and not (started or saved):
                runs.remove_refused(run)
            raise


def resume(
    folder: str | Path,
    model: nn.Module | str | None = None,
    data: Any = None,
    callbacks: Sequence[Callback] = (),
    engine: start.Engine | None = None,
) -> Run:
    """Resume a run from its last checkpoint; its result is that of an uninterrupted run.

    Args:
        folder: Folder of the run.
        model: The model, if the run was started with an object.
        data: The images, if the run was started with an object.
        callbacks: Called with an `Event` after every step and epoch, and at the end.
        engine: Accelerator and processes; what is available if not given.
    """
    run = runs.existing(folder)
    if not run.last.exists():
        raise BadInput(f"{folder} has no checkpoint: the run ended before the first one; start it again")
    fabric = (engine or start.Engine()).start(run.recipe.precision)
    known = checkpoint.recipe_of(run.last)
    if known and known not in (run.recipe.digest, runs.file_digest(run)):
        raise BadInput(
            f"{run.folder / 'recipe.yaml'} has changed since the run started; restore it, or start a new run"
        )
    with torch.random.fork_rng(enabled=True), _translate_lost_process(run.folder):
        work = _start(fabric, run, model, data)
        progress = checkpoint.load(run.last, work.model, work.optimizer, work.ema)
        _check_metrics(run, progress)
        _check_data(run, progress.data, work.progress.data)
        work.progress = replace(progress, data=work.progress.data, recipe=work.progress.recipe)
        return run_epochs(work, callbacks)


def _check_metrics(run: Run, progress: TrainingState) -> None:
    known = progress.metrics_digest
    if known and run.metrics_digest(progress.metrics_bytes) != known:
        file = run.folder / "metrics.jsonl"
        raise BadInput(f"{file} has changed since the last checkpoint; restore it, or start a new run")


def _check_data(run: Run, known: str, current: str) -> None:
    if known and current != known:
        raise BadInput(
            f"the run in {run.folder} started with other training images ({known[:8]}, found "
            f"{current[:8]}); give resume the same data, or start a new run"
        )


def _create(fabric: Fabric, recipe: Recipe, folder: str | Path | None) -> Run:
    """Make the folder in the first process; if that fails, raise its error in all processes."""
    outcome: Path | BadInput | None = None
    if fabric.is_global_zero:
        try:
            outcome = runs.create(recipe, folder).folder
        except BadInput as problem:
            outcome = problem
    outcome = fabric.broadcast(outcome)
    if not isinstance(outcome, Path):
        assert outcome is not None
        raise outcome
    return Run(outcome, recipe)


def _start(fabric: Fabric, run: Run, model: nn.Module | str | None, data: Any) -> Work:
    recipe = run.recipe
    train_set, held_out = start.training_sets(data, recipe)
    model = fabric.to_device(start.network(model, recipe, train_set))
    require_usable(model, torch.empty(0, device=fabric.device))
    trainable = {name: p.requires_grad for name, p in model.named_parameters()}
    model = start.broadcast_model(fabric, start.prepare_network(model, recipe))
    branch, branches = recipe.validation.branch, norm.branches(model) or ("main",)
    if held_out is not None and branch not in branches:
        raise BadInput(
            f"validation.branch: there is no branch {branch!r}; this model has {', '.join(branches)}"
        )
    optimizer = optimizer_for(model.parameters(), recipe.optimizer)
    ema = initial_average(model) if recipe.ema is not None else {}
    if recipe.compile is not None:
        if recipe.compile not in torch.compiler.list_backends(exclude_tags=()):
            raise BadInput(f"torch has no compiler {recipe.compile!r}; compile: inductor is the usual one")
        model.compile(backend=recipe.compile)
    stepper = fabric.setup_optimizers(optimizer)
    loader = start.loader_for(fabric, train_set, recipe)
    progress = TrainingState(data=start.fingerprint(train_set), recipe=recipe.digest)
    return Work(fabric, run, model, optimizer, stepper, loader, held_out, ema, trainable, progress)


_LOST = ("Connection closed by peer", "Connection reset by peer", "Connection refused", "Broken pipe")
"""Messages of torch's backends after another process has ended."""


@contextmanager
def _translate_lost_process(folder: Path) -> Iterator[None]:
    """Replace the error of torch after another process has ended by a BadInput that says how to continue."""
    try:
        yield
    except RuntimeError as problem:
        if world_size() == 1 or not any(words in str(problem) for words in _LOST):
            raise
        started = (folder / "recipe.yaml").exists()
        advice = f"resume with --resume {quote(str(folder))}" if started else "start it again"
        raise BadInput(f"another process of this run has ended; fix the cause, then {advice}") from None
