"""`mlmcgrad data`: says what it has, where from, and where it is; or why not."""

import functools
import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from mlmcgrad.cli import main
from mlmcgrad.cli.commands import DataSettings, data
from mlmcgrad.paper.datasets import cifar10, mnist
from tests.paper.datasets import tiny, tiny_mnist


def test_digits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "digits"]) == 0
    said = capsys.readouterr().out
    assert "scikit-learn" in said
    assert "(1500, 1, 8, 8), uint8, values 0 to 16" in said
    assert "5c56d17a9e9f55befd9e9c1c2fd8cc21ec3354c352fca7115da89d2c2bcc2d69" in said


def test_cifar10_from_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny dataset stands in for the real one."""

    stand_in = functools.partial(cifar10, spec=tiny.SPEC)
    monkeypatch.setattr("mlmcgrad.paper.datasets.cifar10", stand_in)
    monkeypatch.setenv("MLMCGRAD_DATA", str(tmp_path / "data"))
    source = tiny.tarball(tmp_path / "t.tar.gz", tiny.files(".bin"))
    console = Console(file=io.StringIO(), force_terminal=True, width=400, highlight=False)
    found = data(DataSettings("cifar10", source), console)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    for piece in (
        str(source),
        str(tmp_path / "data" / "tiny"),
        "(10, 3, 2, 4)",
        *tiny.SPEC.sha256.values(),
    ):
        assert piece in said
    assert found.train.shape == (10, 3, 2, 4)


def test_what_is_wrong_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "cifar10", "--source", str(tmp_path / "nothing")]) == 2
    assert "nothing does not exist; name a folder or a tarball" in capsys.readouterr().err
    for name in ("digits", "a.npz"):
        assert main(["data", name, "--source", "x"]) == 2
        said = capsys.readouterr().err
        assert (
            said
            == f"mlmcgrad: source is for mnist and cifar10 only, got x for {name}; leave it out\n"
        )
    assert main(["data", "imagenet"]) == 2
    said = "dataset imagenet does not exist; name digits, mnist, cifar10 or a file NAME.npz"
    assert capsys.readouterr().err == f"mlmcgrad: {said}\n"


def test_mnist_from_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in = functools.partial(mnist, spec=tiny_mnist.SPEC)
    monkeypatch.setattr("mlmcgrad.paper.datasets.mnist", stand_in)
    monkeypatch.setenv("MLMCGRAD_DATA", str(tmp_path / "data"))
    source = tiny.folder(tmp_path / "files", tiny_mnist.files())
    assert main(["data", "mnist", "--source", str(source)]) == 0
    said = capsys.readouterr().out
    for piece in (str(source), "(50, 1, 28, 28)", *tiny_mnist.SPEC.sha256.values()):
        assert piece in said
    assert main(["data", "mnist"]) == 0
    assert f"the cache {tmp_path / 'data' / 'tiny'}" in capsys.readouterr().out


def test_a_file_of_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, train=tiny_mnist.TRAIN[:, 0], test=tiny_mnist.TEST)
    assert main(["data", str(path)]) == 0
    said = capsys.readouterr().out
    assert "mine.npz" in said
    assert "(50, 1, 28, 28), uint8, values 0 to 255" in said
    assert main(["data", str(tmp_path / "other.npz")]) == 2
    assert (
        "other.npz does not exist; name digits, mnist, cifar10 or a file" in capsys.readouterr().err
    )
