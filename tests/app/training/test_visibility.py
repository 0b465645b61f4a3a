"""Which inputs the drafts of a root depend on, by gradients to the rows of the first layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from app.training.drafted import draft
from app.training.masks import additive
from engine.drafter.networks.dflash import DFlash
from engine.drafter.networks.pairs import PairNetwork
from engine.drafter.spec import DrafterSpec
from tests.support.naive_losses import LENGTH, some_roots, some_texts
from tests.support.tiny_drafters import DFLASH, EAGLE, MEDUSA, PARALLEL, TinyDrafter, tiny_drafter

GROUPS = {name: spec for name, spec in PARALLEL.items() if spec.method != "p-eagle"}
EVERY = {**EAGLE, **PARALLEL, **DFLASH, "medusa": MEDUSA}


def first_layer_rows(network: Any) -> list[Tensor]:
    """The list into which the next pass puts the input rows of the first layer."""
    rows: list[Tensor] = []

    def keep(_: object, inputs: tuple[Tensor, ...]) -> tuple[Any, ...]:
        rows.append(inputs[0].detach().requires_grad_())
        return (rows[0], *inputs[1:])

    network.layers[0].register_forward_pre_hook(keep)
    return rows


@pytest.mark.parametrize("name", GROUPS)
def test_a_draft_sees_rows_up_to_its_root_and_the_masks_of_its_own_group(name: str) -> None:
    spec = GROUPS[name]
    drafter, roots = tiny_drafter(spec), some_roots()
    counts = [4, 4, 3][: spec.n_drafts or 0]
    shift = 1 if spec.reads_states else 0
    n = LENGTH - shift
    assert isinstance(drafter.network, PairNetwork)
    rows = first_layer_rows(drafter.network)
    found = draft(drafter.network, some_texts(spec), roots, counts, None)
    for text in range(2):
        for depth, drafts in enumerate(found):
            for group in range(counts[depth]):
                (gradient,) = torch.autograd.grad(drafts.logits[text, group].square().sum(), rows, retain_graph=True)
                seen = {(b, row) for b, row in (gradient.abs().sum(-1) > 0).nonzero().tolist()}
                own = [n + sum(counts[1:d]) + group for d in range(1, depth + 1)]
                end = int(roots.at[text, group]) - shift
                assert seen == {(text, row) for row in [*range(end + 1), *own]}


@pytest.mark.parametrize("name", EVERY)
def test_no_draft_reads_states_of_its_root_or_later_positions(name: str) -> None:
    spec = EVERY[name]
    drafter, texts, roots = tiny_drafter(spec), some_texts(spec), some_roots()
    n_depths = min(3, spec.n_drafts or spec.n_heads or 3)
    before = draft(drafter.network, texts, roots, [4] * n_depths, None)
    root = int(roots.at[0, 2])
    states = {}
    for part in ("final", "tapped"):
        known = getattr(texts, part)
        if known is not None:
            states[part] = known.clone()
            states[part][0, root:] = 7.0
    after = draft(drafter.network, replace(texts, **states), roots, [4] * n_depths, None)
    for depth in range(n_depths):
        torch.testing.assert_close(after[depth].logits[0, 2], before[depth].logits[0, 2], rtol=0, atol=1e-12)
    if spec.reads_states:
        assert not torch.allclose(after[0].logits[0, 0], before[0].logits[0, 0])  # a later root does read them


@pytest.mark.parametrize("causal", [False, True])
def test_slots_of_a_block_see_only_their_block(causal: bool) -> None:
    drafter = tiny_drafter(replace(DFLASH["dflash"], causal_block=causal))
    assert isinstance(drafter.network, DFlash)
    rows = first_layer_rows(drafter.network)
    found = draft(drafter.network, some_texts(drafter.spec), some_roots(), [4, 4, 4], None)
    for depth, drafts in enumerate(found):
        (gradient,) = torch.autograd.grad(drafts.logits[1, 2].square().sum(), rows, retain_graph=True)
        last = depth + 2 if causal else 4  # slot 0 is the anchor's
        assert (gradient[1].abs().sum(-1) > 0).nonzero().flatten().tolist() == list(range(8, 8 + last))


def test_attention_keeps_to_its_window() -> None:
    at = torch.arange(6)[None]
    sees = torch.ones(6, 6, dtype=torch.bool).tril()[None]
    mask = additive(sees, at, at, 3, torch.float64)[0, 0]
    assert [(row == 0).nonzero().flatten().tolist() for row in mask][3:] == [[1, 2, 3], [2, 3, 4], [3, 4, 5]]
    for spec in (EAGLE["eagle"], PARALLEL["parallelspec-medusa"]):
        assert not _same(_with_window(spec, 2), _with_window(spec, None))
        assert _same(_with_window(spec, LENGTH + 4), _with_window(spec, None))


def _with_window(spec: DrafterSpec, window: int | None) -> TinyDrafter:
    assert spec.layers is not None
    return tiny_drafter(replace(spec, layers=replace(spec.layers, window=window)))


def _same(one: TinyDrafter, other: TinyDrafter) -> bool:
    texts, roots = some_texts(one.spec), some_roots()
    found = [draft(drafter.network, texts, roots, [4, 4], None)[1].logits for drafter in (one, other)]
    return torch.equal(*found)
