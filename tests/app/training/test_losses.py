"""Losses equal slow ones that recompute every draft from the text and the states that it may read, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import pytest
import torch

from app.training.losses import DraftLoss
from app.training.masks import additive
from app.training.settings import LossSettings, published
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError
from tests.support.naive_losses import ids_of, naive_loss, some_roots, some_texts
from tests.support.tiny_drafters import DFLASH, EAGLE, MEDUSA, PARALLEL, tiny_drafter

SPECS = {"medusa": MEDUSA, **EAGLE, **PARALLEL, **DFLASH}


def settings_of(spec: DrafterSpec) -> LossSettings:
    """As published, without noise; at most three steps."""
    settings = published(spec)
    return replace(settings, noise=0.0, n_depths=min(3, settings.n_depths))


@pytest.mark.parametrize(("name", "labels"), list(zip(SPECS, cycle(["soft", "hard"]), strict=False)))
def test_a_loss_equals_its_definition(name: str, labels: str) -> None:
    spec = SPECS[name]
    drafter, texts, ids = tiny_drafter(spec), some_texts(spec), ids_of(spec)
    settings = replace(settings_of(spec), labels=labels)
    found = DraftLoss(drafter.network, settings, draft_ids=ids).at(texts, some_roots())
    wanted = naive_loss(drafter, settings, texts, some_roots(), None if ids is None else ids.tolist())
    assert wanted > 0.1
    assert found.item() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("name", ["eagle", "parallelspec-eagle", "dspark", "medusa"])
def test_every_term_equals_its_definition(name: str) -> None:
    spec = SPECS[name]
    drafter, texts, ids = tiny_drafter(spec), some_texts(spec), ids_of(spec)
    settings = LossSettings(3, 0.3, distance=0.7, first=0.5, decay=0.6, regression=2.0 if "eagle" in name else 0.0)
    texts = replace(texts, weights=texts.weights * torch.linspace(0.5, 2, texts.weights.shape[1]).double())
    found = DraftLoss(drafter.network, settings, draft_ids=ids).at(texts, some_roots())
    wanted = naive_loss(drafter, settings, texts, some_roots(), None if ids is None else ids.tolist())
    assert found.item() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("name", ["eagle 3", "medusa", "dflash"])
def test_noise_is_drawn_with_the_generator_of_the_run(name: str) -> None:
    spec = SPECS[name]
    drafter, texts = tiny_drafter(spec), some_texts(spec)
    quiet = settings_of(spec)
    losses = [DraftLoss(drafter.network, replace(quiet, noise=n), draft_ids=ids_of(spec)) for n in (0.0, 0.1, 0.1)]
    without, first, second = (loss.at(texts, some_roots(), torch.Generator().manual_seed(1)).item() for loss in losses)
    assert first == second
    assert first != without
    assert first == pytest.approx(without, rel=0.3)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("medusa", {"regression": 1.0}, "regression is 1.0"),
        ("eagle 3", {"regression": 1.0}, "regression is 1.0"),
        ("dflash", {"confidence": 1.0}, "confidence is 1.0"),
        ("eagle", {"keep": 0.5}, "keep is 0.5"),
    ],
)
def test_terms_that_a_drafter_lacks_are_refused(name: str, change: dict[str, float], message: str) -> None:
    drafter = tiny_drafter(SPECS[name])
    with pytest.raises(ConfigError, match=message):
        DraftLoss(drafter.network, replace(settings_of(SPECS[name]), **change), draft_ids=ids_of(SPECS[name]))


@pytest.mark.parametrize(("name", "missing"), [("medusa", "final"), ("dflash", "tapped")])
def test_texts_without_the_states_that_are_read_are_refused(name: str, missing: str) -> None:
    drafter, texts = tiny_drafter(SPECS[name]), replace(some_texts(SPECS[name]), **{missing: None})
    with pytest.raises(ConfigError, match=r"the texts come without"):
        DraftLoss(drafter.network, settings_of(SPECS[name])).at(texts, some_roots())


def test_attention_keeps_to_its_window() -> None:
    at = torch.arange(6)[None]
    mask = additive(torch.ones(6, 6, dtype=torch.bool).tril()[None], at, at, 3, torch.float64)[0, 0]
    assert [(row == 0).nonzero().flatten().tolist() for row in mask][3:] == [[1, 2, 3], [2, 3, 4], [3, 4, 5]]
