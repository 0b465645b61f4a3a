"""Losses equal slow ones written from their definition; what must not matter does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from app.training.losses import DraftLoss
from app.training.settings import LossSettings, published
from app.training.texts import Roots, Texts
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError
from tests.support.naive_losses import naive_loss
from tests.support.tiny_drafters import DFLASH, EAGLE, MEDUSA, PARALLEL, tiny_drafter
from tests.support.training_texts import ids_of, some_roots, some_texts

SPECS = {"medusa": MEDUSA, **EAGLE, **PARALLEL, **DFLASH}


def settings_of(spec: DrafterSpec) -> LossSettings:
    """As published, without noise; at most three steps."""
    settings = published(spec)
    return replace(settings, noise=0.0, n_depths=min(3, settings.n_depths))


@pytest.mark.parametrize("labels", ["soft", "hard"])
@pytest.mark.parametrize("name", SPECS)
def test_a_loss_is_its_definition(name: str, labels: str) -> None:
    spec = SPECS[name]
    drafter, texts, ids = tiny_drafter(spec), some_texts(spec), ids_of(spec)
    settings = replace(settings_of(spec), labels=labels)
    found = DraftLoss(drafter.network, settings, draft_ids=ids).at(texts, some_roots())
    wanted = naive_loss(drafter, settings, texts, some_roots(), None if ids is None else ids.tolist())
    assert wanted > 0.1
    assert found.item() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("name", ["eagle", "parallelspec-eagle", "dspark", "medusa"])
def test_every_term_is_its_definition(name: str) -> None:
    spec = SPECS[name]
    drafter, texts, ids = tiny_drafter(spec), some_texts(spec), ids_of(spec)
    settings = LossSettings(3, 0.3, distance=0.7, first=0.5, decay=0.6, regression=2.0 if "eagle" in name else 0.0)
    texts = replace(texts, weights=texts.weights * torch.linspace(0.5, 2, texts.weights.shape[1]).double())
    found = DraftLoss(drafter.network, settings, draft_ids=ids).at(texts, some_roots())
    wanted = naive_loss(drafter, settings, texts, some_roots(), None if ids is None else ids.tolist())
    assert found.item() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("name", SPECS)
def test_padding_changes_nothing(name: str) -> None:
    spec = SPECS[name]
    drafter, texts = tiny_drafter(spec), some_texts(spec)
    loss = DraftLoss(drafter.network, settings_of(spec), draft_ids=ids_of(spec))
    wanted = loss.at(texts, some_roots())
    other = Texts(*(None if part is None else part.clone() for part in (texts.tokens, texts.weights, None, None)))
    other.tokens[1, 8:] = 1
    final, tapped = (None if part is None else part.clone() for part in (texts.final, texts.tapped))
    for part in (final, tapped):
        if part is not None:
            part[1, 8:] = 100.0
    assert loss.at(replace(other, final=final, tapped=tapped), some_roots()) == wanted
    longer = Texts(*(None if p is None else torch.cat((p, p[:, :3] * 0), 1) for p in parts_of(texts)))
    assert loss.at(longer, some_roots()).item() == pytest.approx(wanted.item(), abs=1e-12)


@pytest.mark.parametrize("name", SPECS)
def test_prompts_are_no_labels(name: str) -> None:
    """A root whose drafts are all of the prompt adds nothing, nor does what only such drafts should have been."""
    spec = SPECS[name]
    drafter, texts = tiny_drafter(spec), some_texts(spec)
    texts = replace(texts, weights=torch.where(torch.arange(10) < 7, 0.0, texts.weights))
    loss = DraftLoss(drafter.network, settings_of(spec), draft_ids=ids_of(spec))
    late = Roots(torch.tensor([[6, 7], [6, 5]]), torch.ones(2, 2, dtype=torch.bool))
    both = Roots(torch.tensor([[6, 7, 2, 3], [6, 5, 1, 2]]), torch.ones(2, 4, dtype=torch.bool))
    settings = replace(loss.settings, keep=1.0)
    loss = DraftLoss(drafter.network, settings, draft_ids=ids_of(spec))
    assert loss.at(texts, both).item() == pytest.approx(loss.at(texts, late).item(), abs=1e-12)


@pytest.mark.parametrize("name", ["eagle", "eagle 3", "medusa", "dflash"])
def test_noise_is_drawn_with_the_runs_generator(name: str) -> None:
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


def test_texts_without_what_is_read_are_refused() -> None:
    for name, without in (("medusa", {"final": None}), ("dflash", {"tapped": None})):
        drafter, texts = tiny_drafter(SPECS[name]), replace(some_texts(SPECS[name]), **without)
        with pytest.raises(ConfigError, match=r"the texts come without"):
            DraftLoss(drafter.network, settings_of(SPECS[name])).at(texts, some_roots())


def parts_of(texts: Texts) -> tuple[torch.Tensor | None, ...]:
    return texts.tokens, texts.weights, texts.final, texts.tapped
