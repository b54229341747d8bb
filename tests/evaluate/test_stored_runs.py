"""What was run: listed, compared, exported."""

import csv
import io

import pytest

from nets import Net, trained
from trimtab.attacks import FGSM, CurvePGD
from trimtab.data.embedded import sample
from trimtab.evaluate import Clean, Noise, RunningMode, Store, compare, export, find, run, runs
from trimtab.evaluate.records import CleanRecord
from trimtab.evaluate.suites import suite_of
from trimtab.types import BadInput, Linf


def two_runs(store: Store) -> None:
    run(trained(), sample(), [Clean(), FGSM()], store=store, limit=50, name="trained", examine=False)
    run(Net(sample().spec), sample(), [Clean(), Noise(0.2)], store=store, limit=50, name="untrained")


def test_a_run_is_listed_once_however_often_it_ran(store: Store) -> None:
    two_runs(store)
    two_runs_again = [run.card for run in runs(store)]
    run(trained(), sample(), [Clean(), FGSM()], store=store, limit=50, name="trained", examine=False)
    assert [one.card for one in runs(store)] == two_runs_again
    assert [one.card.model for one in runs(store)] == ["trained", "untrained"]
    assert find(runs(store)[1].id[:6], store) == runs(store)[1]
    with pytest.raises(BadInput, match="2 runs have an id that begins with ''"):
        find("", store)


def test_runs_are_compared_row_by_row(store: Store) -> None:
    two_runs(store)
    table = compare(runs(store))
    clean = table[CleanRecord(), RunningMode(), 0]
    assert [row and row.n for row in clean] == [50, 50]
    assert clean == [one.card.rows[0] for one in runs(store)]
    assert [[row is None for row in rows] for rows in table.values()] == [
        [False, False],
        [False, True],
        [True, False],
    ]


def test_the_csv_holds_every_row_and_no_time(store: Store) -> None:
    two_runs(store)
    lines = list(csv.DictReader(io.StringIO(export(runs(store)))))
    assert [line["model"] for line in lines] == ["trained", "trained", "untrained", "untrained"]
    for line, row in zip(lines, [row for one in runs(store) for row in one.card.rows], strict=True):
        assert float(line["accuracy"]) == row.accuracy
        assert line["condition"] == str(row.condition)
    assert runs(store)[0].finished not in export(runs(store))
    assert export([]) == ""


def test_a_larger_suite_holds_what_the_smaller_one_measures() -> None:
    quick, standard, full = (suite_of(name) for name in ("quick", "standard", "full"))
    assert set(quick) < set(standard)
    assert {c for c in standard if not isinstance(getattr(c, "attack", None), CurvePGD)} < set(full)
    assert all("l_inf 4/255" in str(c) for c in suite_of("quick", linf=Linf("4/255")) if c.kind == "attack")
