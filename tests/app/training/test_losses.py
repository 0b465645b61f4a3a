"""Losses equal slow ones that recompute every draft from the text and the states that it may read, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import pytest
import torch

from app.training.drafts import masked_attention
from app.training.losses import DraftLoss, LossSettings, published
from engine.drafter.spec import DrafterSpec
from tests.support.naive_losses import ids_of, naive_loss, some_roots, some_texts
from tests.support.tiny_drafters import CUT, DFLASH, EAGLE, MEDUSA, PARALLEL, tiny_drafter

SPECS = {"medusa": MEDUSA, **EAGLE, **PARALLEL, **DFLASH, **CUT}


def settings_of(spec: DrafterSpec) -> LossSettings:
    """As published, without noise; at most three steps."""
    settings = published(spec)
    return replace(settings, noise=0.0, n_depths=min(3, settings.n_depths))


@pytest.mark.parametrize(("name", "labels"), list(zip(SPECS, cycle(["soft", "hard"]), strict=False)))
def test_a_loss_equals_its_definition(name: str, labels: str) -> None:
    spec = SPECS[name]
    drafter, texts, ids = tiny_drafter(spec, ids_of(spec)), some_texts(spec), ids_of(spec)
    settings = replace(settings_of(spec), labels=labels)
    found = DraftLoss(drafter.network, settings, draft_ids=ids).at(texts, some_roots())
    wanted = naive_loss(drafter, settings, texts, some_roots(), None if ids is None else ids.tolist())
    assert wanted > 0.1
    assert found.item() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("name", ["eagle", "parallelspec-eagle", "dspark", "medusa", "eagle, cut", "medusa, cut"])
def test_every_term_equals_its_definition(name: str) -> None:
    spec = SPECS[name]
    drafter, texts, ids = tiny_drafter(spec, ids_of(spec)), some_texts(spec), ids_of(spec)
    settings = LossSettings(3, 0.3, distance=0.7, first=0.5, decay=0.6, regression=2.0 if "eagle" in name else 0.0)
    texts = replace(texts, weights=texts.weights * torch.linspace(0.5, 2, texts.weights.shape[1]).double())
    found = DraftLoss(drafter.network, settings, draft_ids=ids).at(texts, some_roots())
    wanted = naive_loss(drafter, settings, texts, some_roots(), None if ids is None else ids.tolist())
    assert found.item() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("name", ["eagle 3", "medusa", "dflash"])
def test_noise_is_drawn_with_the_generator_of_the_run(name: str) -> None:
    spec = SPECS[name]
    drafter, texts = tiny_drafter(spec, ids_of(spec)), some_texts(spec)
    quiet = settings_of(spec)
    losses = [DraftLoss(drafter.network, replace(quiet, noise=n), draft_ids=ids_of(spec)) for n in (0.0, 0.1, 0.1)]
    without, first, second = (loss.at(texts, some_roots(), torch.Generator().manual_seed(1)).item() for loss in losses)
    assert first == second
    assert first != without
    assert first == pytest.approx(without, rel=0.3)


def test_attention_keeps_to_its_window() -> None:
    at = torch.arange(6)[None]
    attend = masked_attention(torch.ones(6, 6, dtype=torch.bool).tril()[None], at, at, 3, [[]])
    query = torch.zeros(1, 6, 1, 6)
    weights = attend(0, query, query, torch.eye(6)[None, :, None])[0, :, 0]
    assert [row.nonzero().flatten().tolist() for row in weights][3:] == [[1, 2, 3], [2, 3, 4], [3, 4, 5]]
