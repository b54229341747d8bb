"""Names that users may have typed keep working, and what they type explains itself."""

from __future__ import annotations

import dataclasses
import pydoc

import pytest
import torch

from trimtab.attacks import (
    APGD,
    CW,
    FAB,
    FGSM,
    L2,
    PGD,
    AutoAttack,
    CurvePGD,
    Linf,
    Outcome,
    Square,
    TargetedAPGD,
)
from trimtab.attacks.base import Attack
from trimtab.runtime.fingerprint import describe
from trimtab.types import BadInput


@pytest.mark.parametrize(("old", "new"), [("any", True), ("last", False)])
@pytest.mark.parametrize("kind", [PGD, CW, FGSM])
def test_score_still_says_whether_to_stop_early_and_warns(kind: type[PGD], old: str, new: bool) -> None:
    with pytest.warns(DeprecationWarning, match=f"early_stop={new}"):
        attack = kind(score=old)
    assert attack == kind(early_stop=new)
    assert dataclasses.replace(attack, steps=3) == kind(early_stop=new, steps=3)


def test_an_unknown_score_is_refused() -> None:
    with pytest.raises(BadInput, match="last, any"):
        PGD(score="best")


def test_a_budget_may_be_given_by_radius_and_norm() -> None:
    assert PGD(eps="4/255") == PGD(Linf("4/255"))
    assert PGD(eps=0.5, norm="l2", steps=7) == PGD(L2(0.5), steps=7)
    assert FGSM(eps="8/255", norm="Linf") == FGSM(Linf("8/255"))
    assert CurvePGD(eps=0.1, marks=(1,)) == CurvePGD(Linf(0.1), marks=(1,))
    for wrong in ({"norm": "linf"}, {"eps": 0.1, "norm": "l1"}):
        with pytest.raises(BadInput, match="norm"):
            PGD(**wrong)


def test_bf16_is_another_name_of_bfloat16() -> None:
    assert PGD(precision="bf16") == PGD(precision="bfloat16")


@pytest.mark.parametrize(
    "attack",
    [
        PGD(),
        FGSM(early_stop=True),
        CW(),
        PGD(early_stop=True),
        APGD(),
        TargetedAPGD(),
        AutoAttack(),
        AutoAttack(variant="plus"),
        FAB(),
        Square(),
    ],
    ids=str,
)
def test_the_name_of_an_attack_contains_which_iterate_counts(attack: Attack) -> None:
    rule = "early stopping" if getattr(attack, "early_stop", True) else "last iterate"
    assert attack.scored(coupled=False) == rule
    assert rule in str(attack).split(", ")


def test_share_is_another_name_of_fraction_in_square_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match="fraction"):
        attack = Square(share=0.5)
    assert attack == Square(fraction=0.5)
    assert dataclasses.replace(attack, queries=3) == Square(queries=3, fraction=0.5)
    assert describe(attack) == describe(Square(fraction=0.5)) != describe(Square())


def test_the_old_names_of_an_outcome_warn() -> None:
    success = torch.tensor([True, False])
    outcome = Outcome(torch.rand(2, 3), success, torch.tensor([0, -1]))
    with pytest.warns(DeprecationWarning, match=r"Outcome\.success"):
        assert outcome.broken is success
    with pytest.warns(DeprecationWarning, match=r"Outcome\.success_at"):
        assert outcome.broken_at is outcome.success_at


def test_help_explains_every_argument_of_pgd() -> None:
    text = pydoc.render_doc(PGD, renderer=pydoc.plaintext)
    described = {line.strip(" |").partition(":")[0] for line in text.partition("Args:")[2].splitlines()}
    assert described >= {field.name for field in dataclasses.fields(PGD)} | {"score", "eps", "norm"}
