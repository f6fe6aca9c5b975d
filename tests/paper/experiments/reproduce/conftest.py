"""Figures of few pixels: what is tested does not depend on their resolution."""

from collections.abc import Iterator

import pytest

from mlmcgrad.paper.experiments.reproduce import figures


@pytest.fixture(scope="package", autouse=True)
def _coarse_figures() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(figures._STYLE, "savefig.dpi", 20)
        yield
