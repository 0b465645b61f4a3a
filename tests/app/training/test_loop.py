"""Drafters learn texts by heart; a run that continues equals one that was never interrupted."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from app.training import loop
from app.training.acceptance import measure_acceptance
from app.training.batches import PaddedTexts
from app.training.loop import LoopSettings, TrainingRun, rate_factor
from app.training.losses import DraftLoss, Labeller, published
from app.training.train import autocast_products
from engine.drafter.networks.base import TargetParts
from engine.drafter.networks.build import AnyNetwork, new_network
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError
from tests.support.naive_losses import ids_of
from tests.support.tiny_drafters import DFLASH, EAGLE, MEDUSA, PARALLEL

EVERY = {"medusa": MEDUSA, **EAGLE, **PARALLEL, **DFLASH}
METHODS = ("medusa", "eagle", "eagle 3", "parallelspec-medusa", "parallelspec-eagle", "p-eagle", "jetspec", "dspark")
SPECS = {name: replace(EVERY[name], draft_vocab_size=EVERY[name].vocab_size) for name in METHODS}


class Memory:
    """Two batches in turn; the target is sure of every next token."""

    def __init__(self, spec: DrafterSpec, head: torch.Tensor) -> None:
        generator = torch.Generator().manual_seed(2)
        tokens = torch.randint(0, spec.vocab_size, (2, 2, 12), generator=generator)
        final = 12 * torch.nn.functional.normalize(head, dim=1)[tokens.roll(-1, dims=2)]
        tapped = torch.randn(2, 2, 12, spec.target_hidden_size * len(spec.taps), generator=generator)
        weights = torch.ones(2, 12)
        self.batches = [PaddedTexts(tokens[i], weights, final[i], tapped[i] if spec.taps else None) for i in range(2)]

    def __call__(self, step: int) -> PaddedTexts:
        return self.batches[step % 2]


def interrupt() -> PaddedTexts:
    raise KeyboardInterrupt


def made(spec: DrafterSpec) -> tuple[AnyNetwork, Memory]:
    generator = torch.Generator().manual_seed(1)
    embedding, head = torch.randn(2, spec.vocab_size, spec.target_hidden_size, generator=generator)
    torch.manual_seed(0)
    target = TargetParts(embed=lambda tokens: embedding[tokens], head=lambda states: states @ head.T)
    return new_network(spec, target), Memory(spec, head)


def a_run(spec: DrafterSpec, checkpoint: Path, n_roots: int, **settings: Any) -> TrainingRun:
    network, memory = made(spec)
    loss = DraftLoss(network, published(spec), n_roots=n_roots, draft_ids=ids_of(spec))
    return TrainingRun(network, loss, memory, checkpoint, LoopSettings(rate=1e-2, **settings))


@pytest.mark.parametrize("name", [n if n == "eagle 3" else pytest.param(n, marks=pytest.mark.matrix) for n in SPECS])
def test_a_drafter_learns_a_few_texts(name: str, tmp_path: Path) -> None:
    run = a_run(SPECS[name], tmp_path / "checkpoint", 12, steps=150)
    n_depths = run.loss.settings.n_depths if isinstance(run.loss, DraftLoss) else 0
    n_depths = min(3, n_depths) if n_depths > 1 else 2
    labeller = Labeller(run.network.target.head, "soft", is_whole=True)

    def far() -> tuple[float, float]:
        with torch.no_grad():
            loss = sum(float(run.loss(batch, torch.Generator().manual_seed(0))) for batch in run.batch.batches)
        return loss, measure_acceptance(run.network, run.batch.batches, n_depths, labeller, temperature=0.0)["tau"] - 1

    before, guessed = far()
    run.train()
    after, drafted = far()
    assert after < before / 3
    assert guessed < 0.5
    assert drafted > (1 if name == "medusa" else 0.85 * n_depths)  # heads do not see the root, so they learn less


def test_training_in_half_precision_follows_that_in_full_precision(tmp_path: Path) -> None:
    losses = []
    for dtype in (torch.float32, torch.bfloat16):
        run = a_run(SPECS["eagle 3"], tmp_path / str(dtype), 12, steps=60)
        with autocast_products(dtype, torch.device("cpu")):
            losses.append(run.train().loss)
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


@pytest.mark.parametrize("name", ["eagle", "p-eagle", "dspark"])
def test_a_resumed_run_equals_an_uninterrupted_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = a_run(SPECS[name], tmp_path / "whole", 5, steps=8)
    whole.train()
    part = a_run(SPECS[name], tmp_path / "parts", 5, steps=8, checkpoint_every=0)
    with monkeypatch.context() as patch:
        patch.setattr(Memory, "__call__", lambda memory, step: memory.batches[step % 2] if step < 3 else interrupt())
        with pytest.raises(KeyboardInterrupt):
            part.train()
    rest = a_run(SPECS[name], tmp_path / "parts", 5, steps=8)
    assert rest.progress.steps == 3
    rest.train()
    assert rest.progress.steps == 8
    assert rest.progress.loss == whole.progress.loss
    for one, other in zip(whole.network.parameters(), rest.network.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not list(tmp_path.glob("*.part"))
    assert rest.progress.tokens == whole.progress.tokens == 8 * 24
    assert a_run(SPECS[name], tmp_path / "parts", 5, steps=1).progress == rest.progress
    with pytest.raises(
        ConfigError, match=r"has a training with rate None, not 0\.1; use the same value, another --out"
    ):
        a_run(SPECS[name], tmp_path / "parts", 5, steps=1, decisive={"rate": 0.1})


def test_a_run_of_minutes_ends_when_they_are_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.training.loop.time", SimpleNamespace(monotonic=count().__next__))  # a second per step
    for _ in range(2):  # the second run resumes the first, and nothing is left
        progress = a_run(MEDUSA, tmp_path / "checkpoint", 5, minutes=0.05).train()
        assert (progress.steps, progress.seconds) == (3, 3)


def test_frozen_weights_do_not_change_and_a_loss_of_nan_ends_the_run(tmp_path: Path) -> None:
    run = a_run(DFLASH["jetspec"], tmp_path / "checkpoint", 5, steps=2)
    fc = run.network.get_parameter("fc.weight")
    fc.requires_grad_(False)
    frozen = TrainingRun(run.network, run.loss, run.batch, tmp_path / "other", run.settings)
    before, norm = fc.clone(), run.network.get_parameter("norm.weight").clone()
    frozen.train()
    assert torch.equal(before, fc)
    assert not torch.equal(norm, run.network.get_parameter("norm.weight"))
    run.batch.batches = [replace(texts, tapped=texts.tapped * torch.nan) for texts in run.batch.batches]
    with pytest.raises(ConfigError, match="--rate is"):
        run.train()


def test_the_rate_rises_and_falls() -> None:
    assert 0 < rate_factor(0.0) < 0.1
    assert rate_factor(0.02) == pytest.approx(0.5)
    assert rate_factor(0.04) == 1.0
    assert rate_factor(0.28) > 0.85
    assert rate_factor(0.52) == pytest.approx(0.5)
    assert rate_factor(1.0) == pytest.approx(0.0)


def test_gradients_are_clipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AdamW divides by the gradient's size plus an epsilon: gradients far below the epsilon move nothing."""
    moved = []
    for clip in (1.0, 1e-12):
        monkeypatch.setattr(loop, "CLIP", clip)
        run = a_run(MEDUSA, tmp_path / f"{clip}", 5, steps=2)
        weight = run.network.get_parameter("heads.0.out.weight")
        before = weight.detach().clone()
        run.train()
        moved.append(float((weight.detach() - before).abs().max()))
    assert moved[0] > 1e-3
    assert moved[1] < 1e-5
