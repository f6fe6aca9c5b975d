"""Figures of tests have few pixels: drawing them takes longer than many computations."""

from collections.abc import Iterator

import pytest

from mlmcgrad.paper.experiments import plots


@pytest.fixture(autouse=True, scope="session")
def _coarse() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(plots.STYLE, "savefig.dpi", 20)
        yield
