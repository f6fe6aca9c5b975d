"""The right images, black and white where they should be, and the same ones after a resume."""

import functools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mlmcgrad.iwae.networks import CIFAR10, DIGITS, MNIST, BernoulliLikelihood, LatentModel, Sizes
from mlmcgrad.paper import datasets
from mlmcgrad.paper.datasets import binarised
from mlmcgrad.paper.runs.process import Stopped
from mlmcgrad.paper.training.config import Config
from mlmcgrad.paper.training.loop import train
from mlmcgrad.paper.training.trainer import Evaluator, Trainer, load, sizes_for
from tests.paper.datasets import tiny as tiny_files
from tests.paper.datasets import tiny_mnist
from tests.paper.datasets.tiny_mnist import TEST, TRAIN
from tests.paper.training import tiny

CPU = torch.device("cpu")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A file of grey pictures of 8×8 pixels."""
    path = tmp_path / "mine.npz"
    np.savez(path, train=TRAIN[:, 0, :8, :8], test=TEST[:, 0, :8, :8])
    return path


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny dataset stands in for the real one."""
    source = tiny_files.folder(tmp_path / "files", tiny_mnist.files())
    stand_in = functools.partial(
        datasets.mnist, source, cache=tmp_path / "cache", spec=tiny_mnist.SPEC
    )
    monkeypatch.setattr(datasets, "mnist", stand_in)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.usefixtures("mnist")
def test_images_without_binarisation_are_grey() -> None:
    source = load(Config.from_flat(dataset="mnist", binarisation="none").settings())
    np.testing.assert_array_equal(source.train, TRAIN)
    np.testing.assert_array_equal(source.test, TEST)
    assert source.sizes == MNIST
    before = _generator().get_state()
    generator = _generator()
    y = source.batch(np.array([3, 1]), CPU, generator)
    torch.testing.assert_close(y, torch.from_numpy(TRAIN[[3, 1]] / np.float32(255)))
    assert torch.equal(generator.get_state(), before)


@pytest.mark.usefixtures("mnist")
def test_static_images_are_drawn_once_whatever_the_seed_of_the_run() -> None:
    config = {"dataset": "mnist", "binarisation": "static"}
    sources = [load(Config.from_flat(**config, seed=seed).settings()) for seed in (1, 2)]
    for source in sources:
        np.testing.assert_array_equal(source.train, binarised(TRAIN, 256, 0, "train"))
        np.testing.assert_array_equal(source.test, binarised(TEST, 256, 0, "test"))
        first, second = (source.batch(slice(0, 9), CPU, _generator(seed)) for seed in (1, 2))
        assert torch.equal(first, second)
        assert set(first.unique().tolist()) == {0.0, 1.0}
    other = load(Config.from_flat(**config, binarisation_seed=7).settings())
    np.testing.assert_array_equal(other.train, binarised(TRAIN, 256, 7, "train"))
    np.testing.assert_array_equal(other.test, binarised(TEST, 256, 7, "test"))


@pytest.mark.usefixtures("mnist")
def test_dynamic_images_are_drawn_anew_and_test_images_once() -> None:
    """Null hypothesis: white with the probability of the grey value; false alarm below 1e-5.

    The sum of z² over more than 30 000 grey pixels is normal; beyond 4.5 there are 7e-6 of it.
    """
    source = load(Config(dataset="mnist").settings())
    np.testing.assert_array_equal(source.train, TRAIN)
    np.testing.assert_array_equal(source.test, binarised(TEST, 256, 0, "test"))
    generator, draws = _generator(), 400
    total = torch.zeros(TRAIN.shape)
    for _ in range(draws):
        y = source.batch(slice(None), CPU, generator)
        assert set(y.unique().tolist()) == {0.0, 1.0}
        total += y
    share = (total / draws).numpy()
    p = TRAIN / np.float32(255)
    assert (share[TRAIN == 0] == 0.0).all()
    assert (share[TRAIN == 255] == 1.0).all()

    def standard(p: Any) -> float:
        grey = (TRAIN > 0) & (TRAIN < 255)
        variance = (p * (1.0 - p))[grey]
        z = (share - p)[grey] / np.sqrt(variance / draws)
        # The variance of z² is 2 + (1/(p(1−p)) − 6)/draws.
        return float((z**2 - 1.0).sum() / np.sqrt((2.0 + (1.0 / variance - 6.0) / draws).sum()))

    assert abs(standard(p)) < 4.5
    assert abs(standard(p * np.float32(0.98))) > 4.5  # a planted bug


@pytest.mark.usefixtures("mnist")
def test_every_iteration_has_pixels_of_its_own_and_the_seed_gives_the_same() -> None:
    def pixels(seed: int) -> list[torch.Tensor]:
        settings = Config.from_flat(
            dataset="mnist", batch_size=50, method="iwae", seed=seed
        ).settings()
        trainer, seen = Trainer(settings, load(settings)), []
        backward = trainer.objective.backward

        def watching(y: torch.Tensor, **keywords: Any) -> Any:
            seen.append(y)
            return backward(y, **keywords)

        object.__setattr__(trainer.objective, "backward", watching)
        for _ in range(2):
            trainer.step()
        return [y.sum(0) for y in seen]  # a batch is all images, in another order

    first, second = pixels(1)
    assert not torch.equal(first, second)
    assert torch.equal(torch.stack(pixels(1)), torch.stack([first, second]))
    assert not torch.equal(pixels(2)[0], first)


@pytest.mark.usefixtures("mnist")
@pytest.mark.parametrize("count", [9, 50])
def test_probes_have_pixels_of_their_own(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[torch.Tensor]] = []

    def measured(self: Evaluator) -> dict[str, float]:
        seen.append(self.probe)
        return {"nll": 0.0, "nll_se": 0.0}

    monkeypatch.setattr(Evaluator, "measure", measured)
    for name in ("one", "two"):
        train(_config("mnist", tmp_path / name, iterations=1, probe_images=count))
    first, second = seen
    assert [len(y) for y in first] == ([3, 3, 3] if count == 9 else [50, 50, 50])
    assert all(set(y.unique().tolist()) == {0.0, 1.0} for y in first)
    assert not torch.equal(first[0], first[1])
    assert all(map(torch.equal, first, second))


def _config(dataset: Any, out: Path, **changes: Any) -> Config:
    changes = {"batch_size": 10, "iterations": 9, "evaluate_every": 4, **changes}
    return tiny.config(out, dataset=dataset, **changes)


def _stopping(iteration: int) -> Callable[[float, str], None]:
    """Stop a run of 9 iterations after one of them."""
    return lambda share, _: (
        signal.raise_signal(signal.SIGTERM) if round(9 * share) == iteration else None
    )


@pytest.mark.usefixtures("mnist")
@pytest.mark.parametrize("binarisation", ["static", "dynamic", "none"])
@pytest.mark.parametrize("named", ["mnist", "pictures"])
def test_a_run_resumes_with_the_same_bits(
    named: str, binarisation: Any, tmp_path: Path, pictures: Path
) -> None:
    dataset = pictures if named == "pictures" else named
    config = functools.partial(_config, dataset, binarisation=binarisation)
    train(config(tmp_path / "whole"))
    for cut in (3, 7):
        with pytest.raises(Stopped):
            train(config(tmp_path / "cut", resume=True), report=_stopping(cut))
    train(config(tmp_path / "cut", resume=True))
    whole, again = tiny.remains(tmp_path / "whole"), tiny.remains(tmp_path / "cut")
    assert tiny.same(whole, again)
    assert whole["state"]["settings"]["binarisation"] == binarisation
    assert whole["state"]["settings"]["binarisation_seed"] == 0
    other = "none" if binarisation == "static" else "static"
    changes: tuple[dict[str, Any], ...] = ({"binarisation": other}, {"binarisation_seed": 1})
    for change in changes:
        settings = {"binarisation": binarisation, **change}
        with pytest.raises(ValueError, match=rf"^{next(iter(change))} must be .* as .*config.json"):
            train(_config(dataset, tmp_path / "cut", resume=True, **settings))


def test_pictures_are_those_of_the_run_when_it_is_resumed(tmp_path: Path, pictures: Path) -> None:
    train(_config(pictures, tmp_path / "run", iterations=2))
    altered = TRAIN[:, 0, :8, :8].copy()
    altered[-1, -1, -1] ^= 1
    np.savez(pictures, train=altered, test=TEST[:, 0, :8, :8])
    with pytest.raises(ValueError, match=r"^dataset_sha256 must be .* as .*config.json says, got"):
        train(_config(pictures, tmp_path / "run", iterations=4, resume=True))


def test_likelihoods_of_grey_levels_take_pictures(tmp_path: Path, pictures: Path) -> None:
    config = _config(pictures, tmp_path / "run", iterations=2, likelihood="discretized_logistic")
    assert 0.0 < train(config).summary["bits_per_dimension"] < 20.0


def test_colour(tmp_path: Path) -> None:
    path = tmp_path / "colour.npz"
    images = np.random.default_rng(0).integers(0, 256, (30, 12, 20, 3), dtype=np.uint8)
    np.savez(path, train=images[:20], test=images[20:])
    result = train(_config(path, tmp_path / "run", iterations=2))
    assert result.model.sizes.shape == (3, 12, 20)
    assert result.model.sizes.channels == (32, 64)
    assert (tmp_path / "run" / "samples-000002.png").exists()


@pytest.mark.parametrize(
    ("shape", "like"),
    [
        ((1, 8, 8), DIGITS),
        ((1, 16, 16), DIGITS),
        ((1, 28, 28), MNIST),
        ((1, 32, 32), MNIST),
        ((1, 33, 33), MNIST),  # odd
        ((1, 64, 64), CIFAR10),
        ((3, 32, 32), CIFAR10),
        ((3, 8, 8), CIFAR10),
        ((3, 7, 7), DIGITS),  # odd
        ((3, 65, 64), MNIST),
    ],
)
def test_networks_are_those_of_the_dataset_most_like_the_pictures(
    shape: tuple[int, int, int], like: Sizes
) -> None:
    sizes = sizes_for(shape)
    assert (sizes.shape, sizes.latent) == (shape, 50)
    assert (sizes.channels, sizes.hidden) == (like.channels, like.hidden)


def test_networks_of_every_size_can_be_made() -> None:
    for height in range(1, 40):
        for width in (1, 2, 28, 36, 40):
            for channels in (1, 3):
                sizes = sizes_for((channels, height, width))
                if height < 5:
                    model = LatentModel(sizes, BernoulliLikelihood(), _generator())
                    y = torch.zeros(2, channels, height, width)
                    assert model.decoder(model.encoder(y)[0]).shape == y.shape
