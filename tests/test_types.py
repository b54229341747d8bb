"""Numbers as people write them, budgets, and what a model expects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.types import L2, BadInput, InputSpec, Linf, at_least, counts, fraction, number, one_of, pretty


@pytest.mark.parametrize(
    ("written", "meant"),
    [("8/255", 8 / 255), ("1e-3", 0.001), (2, 2.0), ("0.5", 0.5), (" 1 / 4 ", 0.25), ("-1/2", -0.5)],
)
def test_numbers_are_read_as_people_write_them(written: str | float, meant: float) -> None:
    assert number(written) == meant


@pytest.mark.parametrize("written", ["eight", "1/0", "1/2/3", "", "nan", "inf", float("nan"), None, [1]])
def test_what_is_no_number_is_told(written: object) -> None:
    with pytest.raises(BadInput, match="number"):
        number(written)


CHECKS = {
    "epochs must be 1 or more, found 0": lambda: at_least(1, epochs=0),
    "lr must be 0 or more, found nan": lambda: at_least(0, momentum=0.9, lr=float("nan")),
    "n must be 1 or more, found -3": lambda: counts(n0=1, n=-3),
    "n must be a whole number, found 2.5": lambda: counts(n=2.5),
    "n must be a whole number, found True": lambda: counts(n=True),
    "clean is a fraction between 0 and 1, found 1.5": lambda: fraction(alpha=0.0, clean=1.5),
    "clean is a fraction between 0 and 1, found nan": lambda: fraction(clean=float("nan")),
    "attack must be one of a, b, found 'c'": lambda: one_of(iter("ab"), attack="c"),
}


@pytest.mark.parametrize("sentence", CHECKS)
def test_a_refused_value_is_named_with_what_was_found(sentence: str) -> None:
    with pytest.raises(BadInput) as refused:
        CHECKS[sentence]()
    assert str(refused.value) == sentence


def test_allowed_values_pass_and_none_is_no_number() -> None:
    at_least(1, epochs=1, patience=None)
    counts(n=1, limit=None)
    fraction(low=0.0, high=1.0)
    one_of(("sign", "random"), attack="random")


def test_bad_input_is_a_value_error() -> None:
    assert issubclass(BadInput, ValueError)


@given(st.integers(1, 255))
def test_levels_of_a_byte_are_printed_as_such(level: int) -> None:
    assert number(pretty(level / 255)) == pytest.approx(level / 255, rel=1e-5)
    if level not in (51, 102, 153, 204, 255):  # whole fifths have a shorter name
        assert pretty(level / 255) == f"{level}/255"


@pytest.mark.parametrize(("value", "said"), [(0, "0"), (0.5, "0.5"), (0.03, "0.03"), (0.5 / 255, "0.5/255")])
def test_other_numbers_are_printed_plainly(value: float, said: str) -> None:
    assert pretty(value) == said


@pytest.mark.parametrize(("kind", "name"), [(Linf, "l_inf"), (L2, "l_2")])
def test_budgets_are_values(kind: type[Linf] | type[L2], name: str) -> None:
    assert kind("8/255") == kind(8 / 255)
    assert kind("8/255").radius == 8 / 255
    assert str(kind("8/255")) == f"{name} 8/255"
    assert hash(kind(1)) == hash(kind(1.0))
    assert Linf(1) != L2(1)
    with pytest.raises(BadInput, match="negative"):
        kind(-1)


def test_an_input_spec_has_one_mean_and_deviation_per_channel() -> None:
    assert InputSpec(channels=1) == InputSpec(channels=1, mean=(0.0,), std=(1.0,))
    with pytest.raises(BadInput, match=r"1 channels.*found 3 and 1"):
        InputSpec(channels=1, mean=(0.5, 0.5, 0.5))
    with pytest.raises(BadInput, match="positive"):
        InputSpec(std=(1.0, 0.0, 1.0))
