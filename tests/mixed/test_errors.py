"""What cannot be fitted, or not here, is said in words."""

import pytest

from mlmcgrad import mixed
from tests.mixed.quadrature import simulate


def test_what_is_needed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name}", name="formulae")

    assert "fit" in dir(mixed)
    with pytest.raises(AttributeError, match="nothing"):
        _ = mixed.nothing
    monkeypatch.setattr(mixed, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match=r"package formulae; pip install .*\[mixed\]"):
        _ = mixed.load


def test_numbers_that_overflow_are_an_error_in_words() -> None:
    data = simulate("poisson", 1, 5, groups=40, rows=5, sd=(1.0, 0.0)).data
    data["far"] = 1e3 * (data["g"] == 0)
    with pytest.raises(FloatingPointError, match=r"overflows|not a number"):
        mixed.fit("y ~ x + offset(far) + (1 | g)", data, "poisson")
