"""`trimtab train`: a recipe, with any of its keys overridden on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Annotated, Any

import tyro

from trimtab.cli.options import Json, Place, speaks
from trimtab.types import BadInput


@dataclass(frozen=True)
class Train:
    """Train as a recipe says. Any key of the recipe can be given as --key value (dots for inner keys).

    RECIPE is a YAML file or the name of a shipped recipe (--recipes lists them). A run that was killed goes
    on with --resume RUN and ends with the same weights.

    An override: trimtab train sample-apart --objective.eps 0.05 --epochs 3. The recipe.yaml in a run's folder
    lists every key with its value; python -c "import trimtab; help(trimtab.train.Recipe)" does before a run.
    """

    recipe: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[RECIPE]")] = ""
    """A YAML file, or the name of a shipped recipe."""
    resume: Place = None
    """The folder of a run to go on with."""
    out: Place = None
    """The run's folder; a new one below ./runs if not given."""
    plan: tyro.conf.FlagCreatePairsOff[bool] = False
    """Only say what it will cost: passes per step, ratio to standard training, time on this machine."""
    recipes: tyro.conf.FlagCreatePairsOff[bool] = False
    """List the shipped recipes."""
    devices: str = "auto"
    """How many devices (or processes on a CPU) to use."""
    json: Json = False
    overrides: tyro.conf.Suppress[dict[str, str]] = field(default_factory=dict)

    OWN = ("--resume", "--out", "--plan", "--recipes", "--devices", "--json", "--help", "-h")

    @classmethod
    def split(cls, given: Sequence[str]) -> tuple[list[str], list[str]]:
        """Our own options, and those that belong to the recipe."""
        own, rest, words = [], [], iter(given)
        for word in words:
            if not word.startswith("-") or word.split("=")[0] in cls.OWN:
                own.append(word)
                if word in ("--resume", "--out", "--devices"):
                    own += [value for value in [next(words, None)] if value is not None]
            elif "=" in word:
                rest.append(word)
            else:
                value = next(words, "--")
                if value.startswith("--"):
                    raise BadInput(f"{word} takes a value, as in {word} VALUE")
                rest += [word, value]
        return own, rest

    def with_overrides(self, words: Sequence[str]) -> Train:
        pairs: dict[str, str] = {}
        listed = iter(words)
        for word in listed:
            key, equals, value = word.lstrip("-").partition("=")
            pairs[key.replace("-", "_")] = value if equals else next(listed)
        return replace(self, overrides=pairs)

    def run(self) -> int:
        from trimtab import train
        from trimtab.cli import show

        if self.recipes:
            about = {name: train.read_recipe(name).about for name in train.shipped()}
            if self.json:
                show.as_json(list(about))
            else:
                show.table("Shipped recipes", ["recipe", "about"], list(about.items()))
            return 0
        if self.resume is None and not self.recipe:
            raise BadInput("give a recipe, or --resume RUN; `trimtab train --recipes` lists shipped ones")
        if self.resume is not None:
            self._refuse_changes()
        engine = self._engine()
        recipe = None if self.resume else train.read_recipe(self.recipe, self.overrides)
        if recipe is not None and self.plan:
            cost = train.plan(None, None, recipe)
            if self.json:
                show.as_json(cost)
            else:
                show.out.print(str(cost), markup=False)
            return 0
        try:
            with train.progress_bar(shown=speaks()) as bar:
                if recipe is None:
                    assert self.resume is not None
                    run = train.resume(self.resume, callbacks=[bar], engine=engine)
                else:
                    folder = self.out or train.new_folder(recipe)
                    _note(f"Training in {folder}.")
                    run = train.fit(recipe=recipe, folder=folder, callbacks=[bar], engine=engine)
        except train.Stopped as stopped:
            _note(f"Stopped, and saved; go on with: trimtab train --resume {quote(str(stopped.folder))}")
            raise
        import torch.distributed as processes

        if processes.is_available() and processes.is_initialized():
            processes.destroy_process_group()  # one that ends while its threads still run may be aborted
        return self._finish(run)

    def _refuse_changes(self) -> None:
        """A run goes on as its own folder says; only --devices and --json may differ."""

        asked = {"a recipe": self.recipe, "--out": self.out, "--plan": self.plan}
        vain = [name for name, value in asked.items() if value] + [f"--{key}" for key in self.overrides]
        if vain:
            raise BadInput(
                f"--resume goes on as the run's own recipe says, so it cannot heed {', '.join(vain)}; "
                "leave that out, or start a new run"
            )

    def _engine(self) -> Any:
        from trimtab import train

        if self.devices == "auto":
            return train.Engine()
        if not self.devices.isdecimal() or int(self.devices) < 1:
            raise BadInput(f"--devices is auto or a whole number from 1 on, found {self.devices!r}")
        return train.Engine(devices=int(self.devices))

    def _finish(self, run: Any) -> int:
        from trimtab import norm
        from trimtab.cli import show

        chosen, how = run.chosen, run.recipe.validation.choose
        if self.json:
            show.as_json({"folder": str(run.folder), **chosen})
        else:
            which = "" if how == "last" else f"Epoch {chosen['epoch'] + 1} has the best {how} accuracy: "
            words = ", ".join(
                f"{name} {value:.4g}" for name, value in chosen.items() if isinstance(value, float)
            )
            show.out.print(f"The run is in {run.folder}. {which}{words}", markup=False)
            recipe = run.recipe
            built = f"@{recipe.model}" if recipe.model.startswith("py:") else ""
            data = "" if recipe.data.name == "sample" else f" --data {quote(recipe.data.name)}"
            trained = quote(f"file:{run.folder}{built}")
            branches = [f"branch:{name}" for name in norm.branches(run.model) if name != "main"]
            states = f" --states running {' '.join(branches)}" if branches else ""
            show.out.print(f"Next: trimtab evaluate {trained}{data}{states}", markup=False, soft_wrap=True)
        return 0


def _note(sentence: str) -> None:
    """For people, on stderr; of several processes the first one says it."""
    from trimtab.cli import show

    if speaks():
        show.err.print(sentence, markup=False, soft_wrap=True)
