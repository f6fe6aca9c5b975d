"""The gradients of the encoder, and the ladder of importance sampling, against autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.iwae import Objective
from mlmcgrad.iwae.proposal import draw_weights
from mlmcgrad.kernels import Importance
from mlmcgrad.measure import concatenate
from mlmcgrad.store import Remembered
from tests.chains import rng
from tests.iwae.models import linear, phi_gradient, theta_gradient
from tests.statistics import mean_is

K, BATCH = 3, 5


def _y() -> Tensor:
    return torch.randn(BATCH, 3, dtype=torch.float64, generator=rng(1))


def _gradients(model: Any, y: Tensor, x0: Any = None, **options: Any) -> tuple[Tensor, Tensor]:
    model.zero_grad()
    objective = Objective(model, candidates=K, thinning=0.0, **options)
    objective.backward(y, n=1, x0=x0, generator=rng(2))
    return theta_gradient(model), phi_gradient(model)


def _first(model: Any, y: Tensor, *, kept: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """The first draws as functions of φ, and q; where states are kept, one of each comes first."""
    mean, log_scale = model.encoder(y)
    generator, counts = rng(2), (1, K - 1) if kept else (K,)
    noise = torch.cat(
        [
            torch.randn(BATCH, count, mean.shape[1], dtype=torch.float64, generator=generator)
            for count in counts
        ],
        1,
    )
    return mean[:, None] + log_scale.exp()[:, None] * noise, mean, log_scale


def _flat(gradients: Any) -> Tensor:
    return torch.cat([g.flatten() for g in gradients])


def _log_weight(model: Any, z: Tensor, y: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
    rows = [t[:, None].expand(-1, z.shape[1], -1).flatten(0, 1) for t in (y, mean, log_scale)]
    return model.log_weight(z.flatten(0, 1), *rows).reshape(z.shape[:2])


def _expected(model: Any, y: Tensor, encoder: str) -> Tensor:
    """Each formula of encoder.py on the first block, by autograd."""
    z, mean, log_scale = _first(model, y)
    share = _log_weight(model, z, y, mean, log_scale).softmax(1).detach()
    phi = tuple(model.encoder.parameters())
    if encoder == "wake":
        rows = [t[:, None].expand(-1, K, -1).flatten(0, 1) for t in (mean, log_scale)]
        log_q = model.log_q(z.detach().flatten(0, 1), *rows)
        return _flat(torch.autograd.grad(-(share.flatten() * log_q).sum() / BATCH, phi))
    if encoder == "iwae":
        log_w = _log_weight(model, z, y, mean, log_scale)
    else:  # the score of q is left out
        log_w = _log_weight(model, z, y, mean.detach(), log_scale.detach())
    weight = share.square() if encoder == "dreg" else share
    return _flat(torch.autograd.grad(-(weight * log_w).sum() / BATCH, phi))


@pytest.mark.parametrize("kernel", ["isir", "importance"])
@pytest.mark.parametrize("encoder", ["iwae", "dreg", "stl", "wake"])
def test_formulas(encoder: Any, kernel: Any) -> None:
    model, y = linear(latent=2), _y()
    theta, phi = _gradients(model, y, method="iwae", encoder=encoder, kernel=kernel)
    expected = _expected(model, y, encoder)
    assert torch.allclose(phi, expected, rtol=1e-9, atol=1e-12)
    others = [_expected(model, y, other) for other in ("iwae", "dreg", "stl", "wake")]
    assert sum(torch.allclose(phi, other, rtol=1e-3) for other in others) == 1
    plain, _ = _gradients(model, y, method="iwae")
    assert torch.allclose(theta, plain, rtol=1e-9)


@pytest.mark.parametrize("options", [{}, {"kernel": "importance", "multilevel": "sum"}])
def test_mixed_is_half_of_each(options: dict[str, Any]) -> None:
    model, y = linear(latent=2), _y()
    options |= {"method": "mlmc", "truncation": 8}
    parts = [_gradients(model, y, encoder=e, **options)[1] for e in ("iwae", "wake", "mixed")]
    assert torch.allclose(parts[2], (parts[0] + parts[1]) / 2, rtol=1e-9, atol=1e-12)


def test_wake_takes_the_states_of_the_chain() -> None:
    """With a long chain, wake's gradient tends to that of KL(p(z | y) ‖ q), which is exact here.

    Null: mean over calls is the exact one, up to a bias of 1/T; false alarm 1e-5.
    """
    model, y = linear(), torch.tensor([[1.3, -0.4, 0.8]], dtype=torch.float64)
    mean, log_scale = model.encoder(y)
    z = torch.linspace(-12.0, 12.0, 20_001, dtype=torch.float64)[:, None]
    log_p = model.log_joint(z, y.expand(len(z), -1)).detach().softmax(0)
    rows = (t.expand(len(z), -1) for t in (mean, log_scale))
    exact = _flat(
        torch.autograd.grad(
            -(log_p * model.log_q(z, *rows)).sum(), tuple(model.encoder.parameters())
        )
    )
    samples = {}
    for method, options in (
        ("br", {"method": "br", "truncation": 200}),
        ("iwae", {"method": "iwae"}),
    ):
        objective = Objective(model, candidates=2, encoder="wake", thinning=0.0, **options)
        generator, rows_ = rng(3), []
        for _ in range(60):
            model.zero_grad()
            objective.backward(y.expand(40, -1), n=1, generator=generator)
            rows_.append(phi_gradient(model))
        samples[method] = torch.stack(rows_)
    assert mean_is(samples["br"], exact)
    assert not mean_is(samples["iwae"], exact)


@pytest.mark.parametrize("encoder", ["iwae", "dreg"])
@pytest.mark.parametrize("multilevel", ["single", "sum"])
def test_importance_levels(multilevel: Any, encoder: Any) -> None:
    """θ takes the measure of `Importance`, φ the mean over all blocks: both by autograd."""
    model, y = linear(latent=2), _y()
    options = {"method": "mlmc", "truncation": 8, "kernel": "importance", "assignment": "balanced"}
    theta, phi = _gradients(model, y, multilevel=multilevel, encoder=encoder, **options)
    generator = rng(2)
    mean, log_scale = model.encoder(y)
    context = (y, mean.detach(), log_scale.detach())
    kind = mg.MLMC if multilevel == "single" else mg.MLMCSum
    plan = kind(8, assignment="balanced").draw(BATCH, 1, generator)
    assert len(plan.longest.unique()) > 1
    kernel = Importance(model.log_weight, model.propose, K)
    parts = list(kernel.parts(None, context, plan, generator))
    measure = concatenate([part.measure for part in parts])
    rows = [t[measure.owner] for t in (y, mean, log_scale)]
    loss = -(measure.coefficient * model.log_joint(measure.points, rows[0])).sum() / BATCH
    expected = _flat(torch.autograd.grad(loss, tuple(model.decoder.parameters())))
    assert torch.allclose(theta, expected, rtol=1e-9, atol=1e-12)
    noise = (measure.points - rows[1].detach()) / rows[2].detach().exp()
    again = rows[1] + rows[2].exp() * noise
    q = [t.detach() for t in rows[1:]] if encoder == "dreg" else rows[1:]
    log_w = model.log_weight(again, rows[0], *q)
    share = log_w.detach().reshape(-1, K).softmax(1).flatten()
    weight = share.square() if encoder == "dreg" else share
    value = -(weight / plan.longest[measure.owner] * log_w).sum() / BATCH
    expected = _flat(torch.autograd.grad(value, tuple(model.encoder.parameters())))
    assert torch.allclose(phi, expected, rtol=1e-9, atol=1e-12)


def test_a_kept_state_is_the_first_candidate() -> None:
    """θ: Σ ω ∇ over the kept state and k−1 draws; φ: the bound of these k−1."""
    model, y = linear(latent=2), _y()
    kept = torch.randn(BATCH, 2, dtype=torch.float64, generator=rng(5))
    theta, phi = _gradients(model, y, kept, method="iwae")
    z, mean, log_scale = _first(model, y, kept=True)
    z = torch.cat([kept[:, None], z[:, 1:]], 1)
    log_w = _log_weight(model, z, y, mean, log_scale)
    loss = -(log_w.softmax(1).detach() * log_w).sum() / BATCH
    expected = _flat(
        torch.autograd.grad(loss, tuple(model.decoder.parameters()), retain_graph=True)
    )
    assert torch.allclose(theta, expected, rtol=1e-9, atol=1e-12)
    fresh = log_w[:, 1:]
    loss = -(fresh.softmax(1).detach() * fresh).sum() / BATCH
    expected = _flat(torch.autograd.grad(loss, tuple(model.encoder.parameters())))
    assert torch.allclose(phi, expected, rtol=1e-9, atol=1e-12)


def test_a_datum_without_a_state_starts_with_a_draw() -> None:
    """Its first candidate is a draw; the others' states are kept ones."""
    model, y = linear(latent=2), _y()
    kept = torch.randn(BATCH, 2, dtype=torch.float64, generator=rng(5))
    known = torch.tensor([True, False, True, True, False])
    z, _, _ = _first(model, y, kept=True)
    both = torch.where(known[:, None], kept, z[:, 0].detach())
    for encoder in ("iwae", "wake"):
        partly = _gradients(model, y, Remembered(kept, known), method="iwae", encoder=encoder)
        whole = _gradients(model, y, both, method="iwae", encoder=encoder)
        assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(partly, whole, strict=True))


@pytest.mark.parametrize("kernel", ["isir", "mala"])
def test_persistent_chains_remove_the_bias(kernel: Any) -> None:
    """Null: after many visits with `Average(1)` the θ-gradient is the exact one; 1e-5."""
    model = linear()
    y = torch.tensor([[1.3, -0.4, 0.8]], dtype=torch.float64).expand(200, -1)
    exact = model.exact_gradient(y[:1])
    objective = Objective(
        model, method="iwae", candidates=2, kernel=kernel, step_size=0.5, thinning=0.0
    )
    store, generator, rows = mg.Store(200, 1, dtype=torch.float64), rng(4), []
    for visit in range(400):
        model.zero_grad()
        step = objective.backward(y, n=1, x0=store.start(slice(None)), generator=generator)
        store[:] = step.estimate.last
        if visit >= 40 and visit % 12 == 0:  # nearly independent
            rows.append(theta_gradient(model))
    assert mean_is(torch.stack(rows), exact)
    if kernel == "isir":  # planted bug: chains that start anew
        anew = []
        for _ in range(30):
            model.zero_grad()
            objective.backward(y, n=1, generator=generator)
            anew.append(theta_gradient(model))
        assert not mean_is(torch.stack(anew), exact)


def test_bad_starts() -> None:
    model, y = linear(latent=2), _y()
    with pytest.raises(ValueError, match=r"x0 must have shape \(5, 2\).*got \(5, 3\)"):
        _gradients(model, y, torch.zeros(5, 3), method="iwae")
    with pytest.raises(ValueError, match="candidates ≥ 2, or leave x0 out"):
        Objective(model, "iwae", candidates=1).backward(y, x0=torch.zeros(5, 2), generator=rng())
    with pytest.raises(ValueError, match="x0: importance sampling has no state to resume from"):
        _gradients(model, y, torch.zeros(5, 2), method="iwae", kernel="importance")
    with pytest.raises(ValueError, match="multilevel must be one of"):
        _gradients(model, y, multilevel="all")


def test_the_wake_phase_takes_nothing_from_the_draws() -> None:
    share = np.array([0.25, 0.75])
    assert draw_weights("wake", share).tolist() == [0.0, 0.0]
    assert draw_weights("dreg", share).tolist() == [0.0625, 0.5625]
    assert draw_weights("mixed", share).tolist() == [0.125, 0.375]
    assert draw_weights("iwae", share) is share
