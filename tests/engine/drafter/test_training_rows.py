"""Rows of a training forward, many drafts of a batch of texts at once, are the rows of single drafts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.drafter.networks.dflash import DFlash
from engine.drafter.networks.eagle3 import Eagle3
from engine.drafter.networks.pairs import PairNetwork
from tests.support.dense_rows import causal, dense_attend
from tests.support.incremental_drafter import IncrementalDFlash, IncrementalDrafter, Sequence, tree_scores
from tests.support.tiny_drafters import DFLASH, EAGLE, PARALLEL, VOCAB, TinyDrafter, tiny_drafter

BATCH, LENGTH = 2, 9


def texts_and_states(drafter: TinyDrafter) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    width = drafter.spec.target_hidden_size * max(1, len(drafter.spec.taps))
    texts = torch.randint(0, VOCAB, (BATCH, LENGTH), generator=generator)
    return texts, torch.randn(BATCH, LENGTH, width, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", PARALLEL)
def test_groups_of_a_real_row_and_masks(name: str) -> None:
    """Group t is [real row t, its masks] at positions t, t + 1, ..; other groups' masks are invisible to it
    (arXiv 2410.05589, section 4.1)."""
    drafter = tiny_drafter(PARALLEL[name])
    network, n_masks = drafter.network, (drafter.spec.n_drafts or 0) - 1
    assert isinstance(network, PairNetwork | Eagle3)
    texts, states = texts_and_states(drafter)
    shift = 1 if drafter.spec.reads_states else 0
    n = LENGTH - shift
    group = torch.arange(n).repeat_interleave(n_masks)
    mask = torch.arange(n_masks).repeat(n)
    sees = torch.zeros(n + n * n_masks, n + n * n_masks, dtype=torch.bool)
    sees[:n, :n] = causal(n)
    sees[n:, :n] = torch.arange(n) <= group[:, None]
    sees[n:, n:] = (group == group[:, None]) & (mask <= mask[:, None])
    mask_embedded, mask_states = network.mask_rows(n_masks)
    embedded = torch.cat((network.embed_tokens(texts[:, shift:]), mask_embedded.repeat(BATCH, n, 1)), dim=1)
    known = None
    if mask_states is not None:
        known = torch.cat((network.fuse(states[:, :n]), mask_states.repeat(BATCH, n, 1)), dim=1)
    positions = torch.cat((torch.arange(n), group + 1 + mask)).expand(BATCH, -1)
    scores = network.logits(network(embedded, known, positions, dense_attend(sees)))
    for text in range(BATCH):
        for t in range(n):
            rows = [t, *range(n + t * n_masks, n + (t + 1) * n_masks)]
            sequence = Sequence(texts[text, : t + 1 + shift].tolist(), states[text])
            assert_close(scores[text, rows], IncrementalDrafter(drafter).draft_parallel([sequence])[0])


@pytest.mark.parametrize("name", EAGLE)
def test_rows_that_are_fed_their_own_outputs(name: str) -> None:
    """Row i of step s has the output of row i of step s - 1 for a state; it sees the first step's rows up to i and its
    own of earlier steps (arXiv 2503.01840, training-time test)."""
    drafter, n_steps = tiny_drafter(EAGLE[name]), 3
    network = drafter.network
    assert isinstance(network, PairNetwork | Eagle3)
    texts, states = texts_and_states(drafter)
    n = LENGTH - n_steps
    kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(network.shape.n_layers)]  # of every layer, by step
    known, scores = network.fuse(states[:, :n]), []
    for step in range(n_steps):
        sees = torch.cat([causal(n), *[torch.eye(n, dtype=torch.bool)] * step], dim=1)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor, sees: Tensor = sees) -> Tensor:
            kept[layer].append((key, value))
            keys, values = (torch.cat(parts, dim=1) for parts in zip(*kept[layer], strict=True))
            return dense_attend(sees)(layer, query, keys, values)

        embedded = network.embed_tokens(texts[:, 1 + step : 1 + step + n])
        outputs = network(embedded, known, torch.arange(n).expand(BATCH, -1) + step, attend)
        scores.append(network.logits(outputs))
        known = network.next_states(outputs)
    for text in range(BATCH):
        for i in range(n):
            sequence = Sequence(texts[text, : i + 2].tolist(), states[text])
            chain = [(step - 1, int(texts[text, i + 2 + step])) for step in range(n_steps - 1)]
            drafted = IncrementalDrafter(drafter).draft([sequence], [chain])[0]
            assert_close(torch.stack([step[text, i] for step in scores]), drafted)


@pytest.mark.parametrize("name", DFLASH)
def test_blocks_of_many_anchors(name: str) -> None:
    """A block sees the context before its anchor, and itself (arXiv 2602.06036)."""
    drafter = tiny_drafter(DFLASH[name])
    network, spec = drafter.network, drafter.spec
    assert isinstance(network, DFlash)
    texts, states = texts_and_states(drafter)
    anchors = torch.tensor([2, 4, 5, 8])
    blocks = network.block(texts[:, anchors], spec.n_drafts or 0)
    n_slots = blocks.shape[2]
    block, slot = torch.arange(len(anchors)).repeat_interleave(n_slots), torch.arange(n_slots).repeat(len(anchors))
    own = block == block[:, None]
    if spec.causal_block:
        own &= slot <= slot[:, None]
    sees = torch.cat((torch.arange(LENGTH) < anchors[block][:, None], own), dim=1)
    context = network.context(network.fuse(states), torch.arange(LENGTH).expand(BATCH, -1))
    positions = (anchors[block] + slot).expand(BATCH, -1)
    outputs = network(blocks.flatten(1, 2), positions, dense_attend(sees, context))
    drafting = network.drafting(outputs.unflatten(1, (len(anchors), n_slots)))
    for text in range(BATCH):
        for place, anchor in enumerate(anchors.tolist()):
            sequence = Sequence(texts[text, : anchor + 1].tolist(), states[text])
            chain = [(depth - 1, 7 + depth) for depth in range((spec.n_drafts or 0) - 1)]
            found = tree_scores(network, drafting[text, place], sequence.tokens[-1], chain)[0]
            assert_close(found, IncrementalDFlash(drafter).draft([sequence], [chain])[0][0])


def assert_close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
