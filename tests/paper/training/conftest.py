"""A run that nothing interrupted, for the tests that compare with it."""

from pathlib import Path

import pytest

from tests.paper.training import tiny


@pytest.fixture(scope="package")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    tiny.run(folder)
    return folder
