"""What a notebook shows of results: small tables with the numbers, and markup in names stays text."""

import torch

import trimtab
from trimtab import attacks, certify
from trimtab.attacks.base import Outcome
from trimtab.evaluate import Card, Row, RunningMode
from trimtab.evaluate.records import CleanRecord, ImagesRecord
from trimtab.types import html_table


def test_markup_in_cells_stays_text() -> None:
    assert "<b>" not in html_table("<b>", ["<b>"], [["<b>"]])


def test_a_card_prints_its_accuracies_with_intervals() -> None:
    row = Row(CleanRecord(), RunningMode(), ImagesRecord("d", "", 0, 10), 0, 0.9, (0.555, 0.997), 9, 10)
    card = Card("net<1>", "sample", "quick", (row,), ())
    assert str(card).splitlines()[-1].split("  ")[0] == "clean"
    assert "90.0 % [55.5, 99.7]" in str(card)
    html = card._repr_html_()
    assert "<td>90.0 % [55.5, 99.7]</td>" in html
    assert "net&lt;1&gt;" in html


def test_an_audit_is_a_row_per_layer() -> None:
    audit = trimtab.audit(trimtab.load("zoo:sample-standard"))
    assert audit._repr_html_().count("<tr>") == 1 + len(audit.layers)


def test_an_outcome_prints_counts_and_no_pixels() -> None:
    success = torch.tensor([True, True, False, False])
    outcome = Outcome(torch.rand(4, 1, 8, 8), success, torch.tensor([1, 3, -1, -1]))
    assert "misclassified: 2 (50.0%)" in repr(outcome)
    assert "tensor" not in repr(outcome)
    assert "<td>2 (50.0%)</td>" in outcome._repr_html_()
    assert "images: 0" in repr(
        attacks.PGD(steps=1).outcome(torch.nn.Flatten(), torch.rand(0, 1, 2, 2), success[:0])
    )


def test_certificates_show_how_many_are_certified() -> None:
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    torch.nn.init.zeros_(net[1].weight)
    net[1].bias.data = torch.tensor([1.0, 0.0])  # a constant classifier
    found = certify.certify(net, torch.rand(3, 1, 2, 2), sigma=0.5, n0=10, n=100)
    assert "<td>abstains</td><td>0</td>" in found._repr_html_()
    assert f"{float(found.radii.max()):.3f}" in found._repr_html_()
