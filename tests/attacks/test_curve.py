"""Curves of accuracy over steps."""

import torch

from trimtab.attacks import PGD, CurvePGD, Linf, curve


def test_a_curve_tells_what_separate_runs_of_that_length_give(model, images):
    x, y = (part[:32] for part in images)
    attack = PGD(Linf("4/255"), step_size="0.5/255")
    stands = curve(attack, model, x, y, marks=(1, 5, 12))
    for mark, found in stands.items():
        alone = PGD(Linf("4/255"), steps=mark, step_size="0.5/255")(model, x, y)
        with torch.no_grad():
            assert torch.equal(found, model(alone).argmax(1) == y)


def test_a_curve_that_scores_any_iterate_never_rises(model, images):
    x, y = images
    outcome = CurvePGD(Linf("4/255"), steps=20, early_stop=True, marks=(0, 3, 8, 20)).outcome(model, x, y)
    counts = [int(outcome.marks[m].sum()) for m in (0, 3, 8, 20)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] == int(outcome.success.sum())
