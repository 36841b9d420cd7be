import math
import sys

import pytest

import anyorder as ao
from anyorder import checks
from anyorder.checks import InputError, InputTypeError


@pytest.mark.parametrize(
    ("value", "bounds", "error"),
    [
        ("3", {}, InputTypeError),
        (None, {}, InputTypeError),
        (math.nan, {}, InputError),
        (0, {"above": 0}, InputError),
        (1, {"below": 1}, InputError),
        (-0.1, {"at_least": 0}, InputError),
        (1.1, {"at_most": 1}, InputError),
    ],
)
def test_a_number_out_of_its_bounds_is_refused(value, bounds, error) -> None:
    with pytest.raises(error, match="rate must be"):
        checks.real_number("rate", value, **bounds)
    assert checks.real_number("rate", 0.5, above=0, at_least=0.5, at_most=0.5, below=1) == 0.5


@pytest.mark.parametrize(
    ("value", "error"), [(0, InputError), (9, InputError), (True, InputTypeError), (2.0, TypeError)]
)
def test_a_whole_number_is_one_within_its_bounds(value, error) -> None:
    with pytest.raises(error, match="size"):
        checks.whole_number("size", value, 1, 8)
    assert checks.whole_number("size", 8, 1, 8) == 8


def test_a_name_that_is_nearly_right_is_suggested() -> None:
    with pytest.raises(InputError, match="cell must be one of 'gru', 'lstm'; got 'gur'; did you mean 'gru'"):
        checks.one_of("cell", "gur", ["gru", "lstm"])
    with pytest.raises(InputError, match=r"'bed 39', … \(1,000 in all\); got 'bde 41'; did you mean 'bed 41'"):
        checks.one_of("features", "bde 41", [f"bed {i}" for i in range(1000)])


def test_a_missing_extra_is_named() -> None:
    with pytest.raises(InputError, match=r"this needs no_such_module: pip install 'anyorder\[tables\]'"):
        checks.extra("no_such_module", "tables")
    assert checks.extra("math", "tables") is math
    with pytest.raises(AttributeError, match="SIRRE"):
        ao.SIRRE  # noqa: B018
    assert "SIRE" in dir(ao)


def test_the_home_follows_the_environment(monkeypatch) -> None:
    from anyorder.files import home

    monkeypatch.setenv("ANYORDER_HOME", "/chosen")
    assert str(home()) == "/chosen"
    monkeypatch.delenv("ANYORDER_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    if sys.platform == "linux":
        assert str(home()) == "/cache/anyorder"
    assert home().name == "anyorder"
