"""`trimtab train`: a recipe, with any of its keys overridden on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from shlex import quote
from typing import Annotated, Any

import tyro

from trimtab.cli.lazy import console, norm, train
from trimtab.cli.options import Json, OptionalPath, is_main_process
from trimtab.types import BadInput


@dataclass(frozen=True)
class TrainCommand:
    """Train a network by a recipe, whose keys can be given as --key value.

    Inner keys are written with dots. RECIPE is a YAML file or the name of a shipped recipe (--recipes lists
    them). A run that was killed is resumed by --resume RUN and ends with the same weights.

    For example: trimtab train sample-apart --objective.eps 0.05 --epochs 3. All keys are listed by
    python -c "import trimtab; help(trimtab.train.Recipe)", and with their values in a run's recipe.yaml.
    """

    recipe: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[RECIPE]")] = ""
    """A YAML file, or the name of a shipped recipe."""
    resume: OptionalPath = None
    """Folder of the run to resume."""
    out: OptionalPath = None
    """Folder of the new run; if not given, a new folder in ./runs."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the cost and train nothing: passes per step, ratio to standard training, time on this machine."""
    recipes: tyro.conf.FlagCreatePairsOff[bool] = False
    """List the shipped recipes."""
    devices: str = "auto"
    """Number of devices (or of processes on a CPU)."""
    json: Json = False
    overrides: tyro.conf.Suppress[dict[str, str]] = field(default_factory=dict)

    OPTIONS = ("--resume", "--out", "--dry-run", "--recipes", "--devices", "--json", "--help", "-h")

    @classmethod
    def split(cls, given: Sequence[str]) -> tuple[list[str], list[str]]:
        """Split the command line into this command's options and the recipe's keys."""
        options, overrides, words = [], [], iter(given)
        for word in words:
            name = word.split("=")[0].replace("_", "-")
            if not word.startswith("-") or name in cls.OPTIONS:
                options.append(word)
                if word in ("--resume", "--out", "--devices"):
                    options += islice(words, 1)  # its value; tyro reports a missing one
            elif "=" in word:
                overrides.append(word)
            else:
                value = next(words, "--")
                if value.startswith("--"):
                    raise BadInput(f"{word} takes a value, as in {word} VALUE")
                overrides += [word, value]
        return options, overrides

    def with_overrides(self, words: Sequence[str]) -> TrainCommand:
        """Return the command with keys of the recipe set, from words such as `--epochs 3` or `--epochs=3`."""
        pairs: dict[str, str] = {}
        remaining = iter(words)
        for word in remaining:
            key, equals, value = word.lstrip("-").partition("=")
            pairs[key.replace("-", "_")] = value if equals else next(remaining)
        return replace(self, overrides=pairs)

    def run(self) -> int:
        """Run the command and return its exit code."""
        if self.recipes:
            return self._list_recipes()
        if self.resume is None and not self.recipe:
            raise BadInput("missing RECIPE, or --resume RUN; `trimtab train --recipes` lists shipped recipes")
        if self.resume is not None:
            self._refuse_changes()
        engine = self._engine()
        recipe = None if self.resume else train.read_recipe(self.recipe, self.overrides)
        if recipe is not None and self.dry_run:
            return self._show_cost(recipe)
        try:
            with train.progress_bar(shown=is_main_process()) as bar:
                if recipe is None:
                    assert self.resume is not None
                    run = train.resume(self.resume, callbacks=[bar], engine=engine)
                else:
                    folder = self.out or train.new_folder(recipe)
                    console.note(f"Training in {folder}.")
                    run = train.fit(recipe=recipe, folder=folder, callbacks=[bar], engine=engine)
        except train.Stopped as stopped:
            console.note(
                f"Stopped and saved. Resume with: trimtab train --resume {quote(str(stopped.folder))}"
            )
            raise
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()  # a process that exits while its threads run may be aborted
        return self._finish(run)

    def _list_recipes(self) -> int:
        about = {name: train.read_recipe(name).about for name in train.shipped()}
        if self.json:
            console.as_json(list(about))
        else:
            console.table("Shipped recipes", ["recipe", "about"], list(about.items()))
        return 0

    def _show_cost(self, recipe: Any) -> int:
        cost = train.plan(None, None, recipe)
        return console.result(self.json, cost, str(cost))

    def _refuse_changes(self) -> None:
        """Refuse options that a resumed run cannot take; only --devices and --json may be given."""
        given = {"a recipe": self.recipe, "--out": self.out, "--dry-run": self.dry_run}
        ignored = [name for name, value in given.items() if value] + [f"--{key}" for key in self.overrides]
        if ignored:
            raise BadInput(
                f"--resume uses the run's own recipe and cannot take {', '.join(ignored)}; leave that out, "
                "or start a new run"
            )

    def _engine(self) -> Any:
        if self.devices == "auto":
            return train.Engine()
        if not self.devices.isdecimal() or int(self.devices) < 1:
            raise BadInput(f"--devices must be auto or a positive integer, found {self.devices!r}")
        return train.Engine(devices=int(self.devices))

    def _finish(self, run: Any) -> int:
        """Print the result and the command that evaluates it."""
        from trimtab.data.load import has_splits

        result, criterion = run.chosen, run.recipe.validation.choose
        if self.json:
            console.as_json({"folder": str(run.folder), **result})
            return 0
        best = (
            "" if criterion == "last" else f"Epoch {result['epoch'] + 1} has the best {criterion} accuracy: "
        )
        metrics = ", ".join(
            f"{name} {value:.4g}" for name, value in result.items() if isinstance(value, float)
        )
        console.say(f"The run is in {run.folder}. {best}{metrics}")
        recipe = run.recipe
        architecture = f"@{recipe.model}" if recipe.model.startswith("py:") else ""
        data = "" if recipe.data.name == "sample" else f" --data {quote(recipe.data.name)}"
        if not has_splits(recipe.data.name):
            console.note(
                f"{recipe.data.name} has no separate test images: the next command would measure the "
                "training images; name others with --data"
            )
        trained = quote(f"file:{run.folder}{architecture}")
        branches = [f"branch:{name}" for name in norm.branches(run.model) if name != "main"]
        bn_modes = f" --bn-modes running {' '.join(branches)}" if branches else ""
        print(f"Next: trimtab evaluate {trained}{data}{bn_modes}")  # not wrapped, so that it can be copied
        return 0
