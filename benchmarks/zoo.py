"""Put a trained network into the zoo, with a card of what it scores and who confirmed that.

    python -m benchmarks.zoo --from runs/mine --name sample-mine      copy, score, confirm, write the card
    python -m benchmarks.zoo --ledger docs/results --table            put the ledger's networks into the zoo
    python -m benchmarks.zoo --rescore sample-mine                    run the card's command again
    python -m benchmarks.zoo --table                                  write the table of docs/zoo.md anew

Ledger       networks of scale desk and seed 0, as `trimtab reproduce` leaves them; one that is not trained
             yet is named with the command that trains it
Copied       model.safetensors, model.json and recipe.yaml; no checkpoints
Scores       `trimtab evaluate zoo:NAME`: quick suite, budget of training, every branch as a BN mode
Confirmed    by foolbox: LinfPGD with the same budget, steps and step size, last iterate, on the same images
             and on the branch released as a stock model; both start at random, so they agree within chance
First        how many of the first 500 test images are correct, per branch: what a test checks exactly
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from pydantic import TypeAdapter
from torch import nn

import trimtab
from trimtab import cli, data, norm, train
from trimtab.attacks import PGD, Linf
from trimtab.claims import ada, adv, apa, lig, mix
from trimtab.claims.nets import Net
from trimtab.claims.scales import scale_of
from trimtab.data import ImageSet
from trimtab.evaluate import BNMode, Flag, Row
from trimtab.models import grammar
from trimtab.models.files import DESCRIPTION, WEIGHTS
from trimtab.types import BadInput, pretty

ROOT = Path(__file__).parents[1]
FIRST, STEPS, EPS = 500, 20, 8 / 255
MOST = 12_000_000
"""Bytes that the whole zoo may take."""
SCORED = ("clean", "noise", "attack")
"""Kinds of conditions on a card: those whose number is an accuracy, a column of the table each."""
START, END = "<!-- table -->", "<!-- end of table -->"


# ---- a network ----------------------------------------------------------------------------------------


def add(run: Path, name: str, limit: int = FIRST, eps: float | None = None, **changes: str) -> dict[str, Any]:
    """Copy the result of a run into the zoo, with changes of its recipe's text, and write its card."""
    folder = grammar.ZOO / name
    folder.mkdir(parents=True, exist_ok=True)
    for file in (DESCRIPTION, WEIGHTS, "recipe.yaml"):
        shutil.copyfile(run / file, folder / file)
    if changes:
        given = yaml.safe_load((folder / "recipe.yaml").read_text())
        (folder / "recipe.yaml").write_text(yaml.safe_dump({**given, **changes}, sort_keys=False))
    recipe = train.read_recipe(folder / "recipe.yaml")
    model, images = trimtab.load(f"zoo:{name}"), data.load(recipe.data.name, "test")
    eps, branches = eps or budget(recipe), branches_of(model)
    limit = min(limit, len(images))
    words = [
        "evaluate",
        f"zoo:{name}",
        "--data",
        recipe.data.name,
        "--limit",
        str(limit),
        "--eps",
        pretty(eps),
    ]
    words += ["--bn-modes", *("running" if one == "main" else f"branch:{one}" for one in branches)]
    scored = evaluated(words)
    described = json.loads((folder / DESCRIPTION).read_text())
    card = {
        "name": name,
        "about": recipe.about,
        "train": shlex.join(["trimtab", "train", named(recipe, name), "--out", f"runs/{name}"]),
        "evaluate": shlex.join(["trimtab", *words]),
        "data": recipe.data.name,
        "seed": recipe.seed,
        "network": described["source"],
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": (folder / WEIGHTS).stat().st_size,
        "scores": scores(scored),
        "flags": scored["flags"],
        "confirmed": {branch: confirmed(model, branch, images, eps, limit) for branch in branches},
        "first": {branch: right(released(model, branch), images, FIRST) for branch in branches},
        "versions": {"trimtab": trimtab.__version__, "torch": torch.__version__},
    }
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    (folder / "README.md").write_text(readme(card))
    return card


LEDGER: dict[str, tuple[str, Net, str]] = {
    "cifar10-standard": ("ADA-1", ada.BASELINE, "standard training"),
    "cifar10-adversarial": ("ADA-1", ada.ADV_INF, "PGD-7 at 8/255"),
    "cifar10-noise": ("ADA-1", ada.RAND, "Gaussian noise of sigma 0.5"),
    "cifar10-mixture": (
        "MIX-4",
        mix.MBN,
        "Mixture BN, targeted PGD-7 at 16/255, statistics of 32 images",
    ),
    "cifar10-advbn": ("ADV-1", adv.ADVBN, "AdvBN, from zoo:cifar10-standard"),
    "cifar10-apart": ("APA-1", apa.APART, "APART on 5,000 images, which a network of this size fits"),
    "cifar10-nobn": ("LIG-2", lig.NONE, "standard training without normalization layers"),
}
"""By name: a claim that trains the network, the network, and how it was trained."""
START_OF = {"cifar10-advbn": "zoo:cifar10-standard"}
"""Networks of the zoo that others start from."""


def from_ledger(results: Path, work: Path, limit: int = FIRST, scale: str = "desk") -> list[str]:
    """Put the ledger's networks of seed 0 into the zoo; return the commands that train the missing ones."""
    missing: dict[str, str] = {}
    for name, (claim, net, how) in LEDGER.items():
        key = net.key(scale_of(scale, claim.partition("-")[0].lower()), 0)
        places = [results / scale / "networks" / key, work / "networks" / key]
        found = next((place for place in places if (place / WEIGHTS).exists()), None)
        if found is None:
            missing[name] = f"trimtab reproduce {claim} --scale {scale} --out {results} --seeds 1"
            continue
        changes = {"about": f"CIFAR-10, {how}: the ledger's network of seed 0 at scale {scale} ({claim})"}
        if name in START_OF:
            changes["model"] = START_OF[name]
        add(found, name, limit, EPS, **changes)
    return [f"zoo:{name} is not trained yet: {command}" for name, command in missing.items()]


def scores(scored: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a scorecard whose number is an accuracy, without what belongs to one store."""
    left_out = ("key", "figures", "curve", "measure")
    rows = [row for row in scored["rows"] if row["condition"]["kind"] in SCORED]
    return [{name: value for name, value in row.items() if name not in left_out} for row in rows]


def rescore(name: str) -> None:
    """Run the command on a network's card again, and write its rows, flags and versions anew."""
    folder = grammar.ZOO / name
    card = json.loads((folder / "card.json").read_text())
    command = card["evaluate"].replace("--states", "--bn-modes")
    scored = evaluated(shlex.split(command)[1:])
    versions = {"trimtab": trimtab.__version__, "torch": torch.__version__}
    card |= {"evaluate": command, "scores": scores(scored), "flags": scored["flags"], "versions": versions}
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    (folder / "README.md").write_text(readme(card))


def evaluated(words: list[str]) -> dict[str, Any]:
    """What `trimtab evaluate` says in JSON, into a store of its own."""
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as store, contextlib.redirect_stdout(said):
        code = cli.main([*words, "--store", f"{store}/store.sqlite", "--json"])
    if code:
        raise BadInput(f"trimtab {shlex.join(words)} ended with exit code {code}")
    scored: dict[str, Any] = json.loads(said.getvalue())
    return scored


def budget(recipe: train.Recipe) -> float:
    """The l_inf radius that the recipe trains against; 8/255 where it has none."""
    trained = getattr(getattr(recipe.objective, "attack", None), "budget", None)
    return float(trained.radius) if isinstance(trained, Linf) else EPS


def named(recipe: train.Recipe, name: str) -> str:
    """The shipped recipe that this one is, or the file in the zoo."""
    same = (one for one in train.shipped() if train.read_recipe(one) == recipe)
    return next(same, f"src/trimtab/zoo/{name}/recipe.yaml")


# ---- confirmation -------------------------------------------------------------------------------------


def branches_of(model: nn.Module) -> list[str]:
    """All norm branches, main first."""
    layers = norm.layers(model).values()
    return list(dict.fromkeys(["main", *(name for layer in layers for name in layer.branch_names)]))


def released(model: nn.Module, branch: str) -> nn.Module:
    """A copy that is stock PyTorch with the values of one branch: nothing of ours normalizes in it."""
    return norm.release(copy.deepcopy(model).eval(), branch)


def confirmed(model: nn.Module, branch: str, images: ImageSet, eps: float, limit: int) -> dict[str, Any]:
    """PGD-20 by us and by foolbox, the image of the last iteration counting: how many stand."""
    net = released(model, branch)
    ours = PGD(Linf(eps), STEPS, early_stop=False)
    return {
        "attack": str(ours),
        "n": limit,
        "clean": right(net, images, limit),
        "trimtab": stand(net, lambda x, y, ids: ours(net, x, y, ids=ids), images, limit),
        "foolbox": stand(net, foolbox_pgd(net, eps), images, limit),
    }


def foolbox_pgd(net: nn.Module, eps: float) -> Any:
    import foolbox

    torch.manual_seed(0)  # foolbox starts where torch's generator says
    wrapped = foolbox.PyTorchModel(net, bounds=(0, 1), device="cpu")
    attack = foolbox.attacks.LinfPGD(abs_stepsize=2.5 * eps / STEPS, steps=STEPS, random_start=True)
    return lambda x, y, ids: attack(wrapped, x, y, epsilons=eps)[1]


def stand(net: nn.Module, attack: Any, images: ImageSet, limit: int) -> int:
    """How many of the first images are right after the attack."""
    count = 0
    for batch in images.subset(slice(0, limit)).batches(250):
        x = attack(batch.x, batch.y, batch.ids)
        with torch.no_grad():
            count += int((net(x).argmax(1) == batch.y).sum())
    return count


def right(net: nn.Module, images: ImageSet, limit: int) -> int:
    """How many of the first images are right as they are."""
    return stand(net, lambda x, y, ids: x, images, limit)


# ---- for people ---------------------------------------------------------------------------------------


def readme(card: dict[str, Any]) -> str:
    scores = "\n".join(
        f"| {row.condition} | {row.bn_mode} | {row.iterate or '–'} | {percent(row.accuracy)} "
        f"({' to '.join(f'{100 * end:.1f}' for end in row.interval)}) |"
        for row in rows_of(card)
    )
    flags = "\n".join(f"- **{flag.name}** ({flag.bn_mode}): {flag.saw}" for flag in flags_of(card))
    checks = "\n".join(
        f"| {branch} | {found['attack']} | {found['trimtab']} | {found['foolbox']} | {found['n']} |"
        for branch, found in card["confirmed"].items()
    )
    versions = ", ".join(f"{name} {version}" for name, version in card["versions"].items())
    return f"""# zoo:{card["name"]}

{card["about"]}. {card["parameters"]:,} parameters, seed {card["seed"]}, {versions}.

```text
{card["train"]}
{card["evaluate"]}
```

First {card["scores"][0]["n"]} images of {card["data"]}:

| condition | BN mode | iterate | accuracy (95 % interval) |
|---|---|---|---|
{scores}

Trust card: {"no flag." if not flags else chr(10) * 2 + flags}

Confirmed by foolbox (images that are still classified correctly, last iterate, each library with its own
random start):

| branch | attack | trimtab | foolbox | images |
|---|---|---|---|---|
{checks}
"""


def rows_of(card: dict[str, Any]) -> list[Row]:
    """The rows of a network's card as values."""
    return TypeAdapter(list[Row]).validate_python(card["scores"])


def flags_of(card: dict[str, Any]) -> list[Flag]:
    """The flags of a network's card as values."""
    return TypeAdapter(list[Flag]).validate_python(card["flags"])


def table() -> str:
    """A line per network and branch, from the cards."""
    lines = [
        "| network | BN mode | clean | noise 0.1 | FGSM | PGD-20, early stopping | PGD-20, last iterate: "
        "trimtab, foolbox | flags | MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for file in sorted(grammar.ZOO.glob("*/card.json")):
        card = json.loads(file.read_text())
        by_mode: dict[BNMode, list[str]] = {}
        for row in rows_of(card):
            by_mode.setdefault(row.bn_mode, []).append(percent(row.accuracy))
        for (mode, cells), found in zip(by_mode.items(), card["confirmed"].values(), strict=True):
            last = ", ".join(percent(found[who] / found["n"]) for who in ("trimtab", "foolbox"))
            flags = ", ".join(flag.name for flag in flags_of(card) if flag.bn_mode == mode) or "none"
            size = f"{card['bytes'] / 1e6:.2f}"
            lines.append(
                "| " + " | ".join([f"`zoo:{card['name']}`", str(mode), *cells, last, flags, size]) + " |"
            )
    return "\n".join(lines)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def write_table(page: Path = ROOT / "docs" / "zoo.md") -> None:
    before, _, rest = page.read_text().partition(START)
    page.write_text(f"{before}{START}\n{table()}\n{END}{rest.partition(END)[2]}")


def main(words: list[str] | None = None) -> int:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--from", dest="run", type=Path, help="the folder of a finished run")
    asked.add_argument("--ledger", type=Path, help="the folder of the ledger's results")
    asked.add_argument("--work", type=Path, default=Path(".trimtab/claims"), help="its folder of networks")
    asked.add_argument("--scale", default="desk", help="its scale")
    asked.add_argument("--name", help="what the network is called in the zoo")
    asked.add_argument("--limit", type=int, default=FIRST, help="test images to score it on")
    asked.add_argument("--rescore", nargs="*", default=[], help="networks whose cards are measured anew")
    asked.add_argument("--table", action="store_true", help="write the table of docs/zoo.md anew")
    given = asked.parse_args(words)
    if given.run is not None:
        add(given.run, given.name or given.run.name, given.limit)
    missing = []
    if given.ledger is not None:
        missing = from_ledger(given.ledger, given.work, given.limit, given.scale)
        print(*missing, sep="\n", file=sys.stderr)
    for name in given.rescore:
        rescore(name)
    if given.table:
        write_table()
    taken = sum(file.stat().st_size for file in grammar.ZOO.rglob("*") if file.is_file())
    print(f"the zoo takes {taken / 1e6:.2f} MB")
    return int(taken > MOST or bool(missing))


if __name__ == "__main__":
    sys.exit(main())
