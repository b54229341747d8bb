"""Recipes: strict, helpful, complete, and the same after a round trip.

Also tests train.reader.
"""

from __future__ import annotations

import copy
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch import nn

from trimtab import attacks, models, train
from trimtab.data import augment
from trimtab.train.reader import OBJECTIVES, parsed
from trimtab.train.recipe import (
    Data,
    Norm,
    Recipe,
    Schedule,
    Validation,
    read_recipe,
    shipped,
    write_recipe,
)
from trimtab.types import BadInput


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_recipe_reads_and_survives_a_round_trip(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe.about
    models.parse(recipe.model)
    augment.parse_augment(recipe.data.augment)
    assert read_recipe(yaml.safe_load(write_recipe(recipe))) == recipe


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("apart-laptop", "f576c94bb3bb6a1e3523321c28d63b065ed1a8eefd7da510030528c0bbc857ba"),
        ("adversarial-laptop", "ecae0bf6f85ce19617e87956dcd5b5dd3d4f9d71c9547ee2d60d230e3e28be89"),
    ],
)
def test_digests_of_recipes_stay_what_stored_runs_have(name: str, digest: str) -> None:
    assert read_recipe(name).digest == digest


def test_every_paper_has_a_recipe_with_its_numbers() -> None:
    mixture = read_recipe("mix-mbn-paper")
    assert mixture.objective == train.Mixture(
        attacks.PGD(attacks.Linf("16/255"), 30, "1/255", targeted=True, clean_start=0.2), label_smoothing=0.1
    )
    assert (mixture.epochs, mixture.batch_size, mixture.schedule.milestones) == (110, 4096, (35, 70, 95))
    assert read_recipe("mix-running-paper").norm.running_epochs == 10
    advbn = read_recipe("advbn-resnet50-paper")
    assert advbn.objective == train.AdvBN(cut="layer1", eps=1.1, steps=6, step_size=0.2)
    assert (advbn.epochs, advbn.batch_size) == (20, 256)
    apart = read_recipe("apart-sam-wrn40_2-cifar100-paper")
    assert apart.objective == train.APART(eps=0.1, groups=16, sam_rho=0.2, stop_gradient=True)
    assert (apart.epochs, apart.batch_size, apart.schedule.milestones) == (200, 128, (100, 150))
    assert read_recipe("ada-rand-paper").objective == train.Gaussian(sigma=0.5)
    assert isinstance(read_recipe("lig-regularizer-paper").objective, train.LIGS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"objectiv": "apart"}, "no key 'objectiv'; did you mean 'objective'"),
        ({"objective": {"kind": "apart", "epz": 0.1}}, "no key 'objective.epz'; did you mean 'eps'"),
        ({"objective": "appart"}, "kind 'appart'; did you mean 'apart'"),
        (
            {"objective": {"kind": "adversarial", "attack": {"kind": "pgd", "step": 3}}},
            "did you mean 'steps'",
        ),
        (
            {"objective": {"kind": "adversarial", "attack": {"kind": "pgd", "budget": "8/255"}}},
            "{linf: 8/255}",
        ),
        ({"objective": {"eps": 0.1}}, "objective needs a kind, one of standard, gaussian"),
        ({"objective": {"kind": "apart", "eps": -1}}, "objective: a radius must not be negative"),
        ({"epochs": "many"}, "epochs should be a valid integer, found 'many'"),
        ({"epochs": 0}, "epochs must be 1 or more, found 0"),
        ({"epochs": True}, "epochs should be"),
        ({"optimizer": {"lr": "fast"}}, "optimizer.lr: 'fast' is not a number"),
        ({"optimizer": {"kind": "lbfgs"}}, "optimizer.kind should be 'sgd', 'adam'"),
        ({"norm": {"only": "yes please"}}, "norm.only should be a valid boolean"),
        ({"norm": 3}, "norm must contain keys and values"),
        ({"norm": {"onyl": True}}, "no key 'norm.onyl'; did you mean 'only'"),
        (
            {"objective": {"kind": "sam", "inner": {"kind": "apart", "groops": 2}}},
            "no key 'objective.inner.groops'; did you mean 'groups'",
        ),
        (
            {"objective": {"kind": "sam", "inner": {"kind": "gaussian", "sigma": "x"}}},
            "objective.inner.sigma: 'x' is not",
        ),
        (
            {"validation": {"attack": {"kind": "cw", "loss": 3}}},
            "validation.attack.loss should be a valid string",
        ),
        ({"data": {"augment": {"flip": 1}}}, "data.augment should be a valid tuple"),
        ({"clip": "1/0"}, "clip: '1/0' is not a number"),
        ({"objective": {"kind": ["sam"]}}, "objective cannot be of kind ['sam']"),
        ({"objective": "sam", "precision": "16-mixed"}, "SAM reads gradients, which fp16 scales"),
        ({"objective": "apart", "norm": {"running_epochs": 2}}, "APART perturbs batch statistics"),
        ({"validation": {"choose": "robust"}}, "validation needs an attack"),
        ({"validation": {"patience": 3}}, "patience waits for a better accuracy"),
        ({"validation": {"choose": "clean"}, "data": {"validation": 0}}, "data.validation holds out none"),
        ({"batch_size": 10, "accumulate": 3}, "cannot be processed in 3 equal parts"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_its_cure(given: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_recipe(given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_any_key_can_be_overridden_by_its_dotted_name() -> None:
    overrides = {
        "objective.attack.budget.linf": "4/255",
        "objective.attack.steps": "3",
        "optimizer.lr": "1e-3",
        "data.augment": "[flip, mixup:0.2]",
        "ema": "0.99",
    }
    recipe = read_recipe("adversarial-laptop", overrides)
    assert recipe.objective == train.Adversarial(attacks.PGD(attacks.Linf(4 / 255), steps=3))
    assert recipe.optimizer.lr == 1e-3
    assert recipe.data.augment == ("flip", "mixup:0.2")
    assert recipe.ema == 0.99
    assert recipe.epochs == read_recipe("adversarial-laptop").epochs


@pytest.mark.parametrize("doubled", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("used", [False, True])
def test_a_recipe_can_be_copied_and_pickled_whatever_its_objective(doubled: object, used: bool) -> None:
    objective = train.AdvBN(cut="1", eps=0.3)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
    if used:
        objective.prepare(net)
    recipe = Recipe(objective=objective)
    again = doubled(recipe)  # type: ignore[operator]
    assert again == recipe
    assert repr(again) == repr(recipe)
    assert hash(again.objective) == hash(objective)
    front, _ = again.objective.halves(net)
    assert front.get_parameter("0.weight") is net[0].weight  # not of a copy of the network


def test_where_a_list_is_asked_for_one_value_is_a_list_of_one() -> None:
    recipe = read_recipe({"schedule": {"kind": "step", "milestones": 3}}, {"data.augment": "flip"})
    assert recipe.data.augment == ("flip",)
    assert recipe.schedule.milestones == (3.0,)
    with pytest.raises(BadInput, match=r"data\.augment should be a valid string, found 3"):
        read_recipe({}, {"data.augment": "[flip, 3]"})


def test_another_kind_starts_afresh() -> None:
    recipe = read_recipe("adversarial-laptop", {"objective.eps": "0.2", "objective.kind": "apart"})
    assert recipe.objective == train.APART(eps=0.2)


def test_a_file_that_is_missing_or_no_yaml_is_refused_in_a_sentence(tmp_path: object) -> None:
    with pytest.raises(BadInput, match="there is no recipe 'nowhere"):
        read_recipe("nowhere.yaml")
    broken = tmp_path / "broken.yaml"  # type: ignore[operator]
    broken.write_text("epochs: [1, 2")
    with pytest.raises(BadInput, match="not valid YAML"):
        read_recipe(broken)


ZOO = sorted((Path(train.__file__).parents[1] / "zoo").glob("*/model.json"))


@pytest.mark.parametrize("file", ZOO, ids=lambda file: file.parent.name)
def test_recipes_of_the_zoo_stay_readable(file: Path) -> None:
    recipe = json.loads(file.read_text())["provenance"]["recipe"]
    old = {"optimizer": "optimiser"} | {"synchronize": "synchronise"}
    spelt = {old.get(key, key): value for key, value in recipe.items()}
    spelt["norm"] = {old.get(key, key): value for key, value in spelt["norm"].items()}
    assert read_recipe(recipe) == read_recipe(spelt)
    if (file.parent / "recipe.yaml").exists():
        assert read_recipe(file.parent / "recipe.yaml").epochs > 0


def test_networks_and_augmentation_of_the_mixture_paper_are_those_of_its_public_recipe() -> None:
    for name in (
        "mix-adversarial-paper",
        "mix-mbn-paper",
        "mix-mixed-paper",
        "mix-running-paper",
        "mix-gn-paper",
    ):
        recipe = read_recipe(name)
        assert recipe.model.endswith(",init=zero-last")
        assert recipe.data.augment == ("random-resized-crop", "flip", "jitter:0.4")
    assert read_recipe("lig-constructed-paper").data.augment == ("crop", "flip", "jitter:0.25", "rotate:2")


def test_batch_statistics_of_the_mixture_papers_are_of_32_images() -> None:
    """4096 images over 128 GPUs, each with statistics of its own."""
    for name in ("mix-adversarial-paper", "mix-mbn-paper", "mix-mixed-paper", "mix-running-paper"):
        assert read_recipe(name).norm.synchronize is False


@pytest.mark.parametrize("name", ["ada-adv-l2-paper", "ada-adv-linf-paper"])
def test_adversarially_trained_source_networks_are_chosen_by_robust_accuracy(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe.validation.choose == "robust"
    assert recipe.validation.attack.budget == recipe.objective.attack.budget


def test_defaults_are_finite_and_frozen() -> None:
    recipe = Recipe()
    assert math.isfinite(recipe.optimizer.lr)
    with pytest.raises(AttributeError):
        recipe.epochs = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"objective": train.APART(samples=6), "accumulate": 4}, "samples=6 cannot be split over 4"),
        ({"objective": train.APART(samples=32)}, "takes 32 images of the batch, which has only 16"),
        (
            {"objective": train.SAM(inner=train.APART(groups=5))},
            "16 images of the second pass cannot be split into 5",
        ),
        ({"objective": train.SAM(inner=train.AdvBN()), "compile": "inductor"}, "leave compile out"),
        ({"schedule": Schedule(kind="step", milestones=(5, 15))}, "within the 10 epochs, found 5, 15"),
        ({"schedule": Schedule(warmup=10)}, "takes all 10 of them"),
        (
            {"validation": Validation(attack=attacks.FGSM()), "data": Data(validation=0)},
            "validation.attack needs images",
        ),
        (
            {"objective": train.APART(groups=5)},
            "16 images of the second pass cannot be split into 5 equal groups",
        ),
        ({"norm": Norm(frozen=True, running_learn=True)}, "but norm.running_learn updates them"),
    ],
)
def test_what_could_not_train_is_refused_before_it_starts(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        Recipe(batch_size=16, **changes)


@pytest.mark.parametrize("kind", [kind for kind in OBJECTIVES.values() if kind not in (train.SAM, train.AWP)])
def test_a_share_that_cannot_be_is_refused_by_every_objective(kind: type) -> None:
    with pytest.raises(BadInput, match="label_smoothing is a fraction"):
        kind(label_smoothing=1.5)


def test_a_key_that_stands_twice_is_refused() -> None:
    for text in ("epochs: 2\nseed: 1\nepochs: 3\n", "data:\n  images: 1\n  images: 2\n"):
        with pytest.raises(BadInput, match=r"has the key '(epochs|images)' twice"):
            parsed(text, "my.yaml")


def test_a_shipped_recipe_that_is_nearly_named_is_offered() -> None:
    with pytest.raises(BadInput, match="did you mean 'apart-laptop'"):
        read_recipe("apart-lptop")


def test_a_list_of_augmentations_is_as_good_as_a_tuple() -> None:
    assert Data(augment=["flip"]) == Data(augment=("flip",))  # type: ignore[arg-type]


def test_overrides_do_not_undo_one_another() -> None:
    recipe = read_recipe("smoke", {"optimizer.kind": "sgd"})
    assert recipe.optimizer == read_recipe("smoke").optimizer
    given = {"objective.attack.steps": "3", "objective.attack.kind": "cw", "objective": "mixture"}
    for order in (given, dict(reversed(given.items()))):
        attack = read_recipe("smoke", order).objective.attack
        assert isinstance(attack, attacks.CW)
        assert attack.steps == 3


def test_parts_of_a_step_share_groups_and_samples() -> None:
    apart = train.SAM(inner=train.APART(groups=8, samples=32)).in_parts(4).inner
    assert (apart.groups, apart.samples) == (2, 8)
    assert train.APART(groups=1).in_parts(4).groups == 1
