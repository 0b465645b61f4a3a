"""Blocks of slots at many anchors of a text (DFlash, arXiv 2602.06036)."""

from __future__ import annotations

import torch
from torch import Tensor

from app.training.masks import additive, attention
from app.training.texts import Roots, take
from engine.drafter.networks.dflash import DFlash


def block_outputs(network: DFlash, tokens: Tensor, tapped: Tensor, roots: Roots, n_drafts: int) -> list[Tensor]:
    """Outputs ``[b, m, hidden]`` of the slots that draft.

    A block sees the texts' states before its anchor, and itself: all of it, or what comes earlier.

    Args:
        tokens: int64 ``[b, n]``.
        tapped: ``[b, n, n_taps * target_hidden]``.
        n_drafts: tokens that a block drafts.
    """
    (n_texts, n), n_roots, device = tokens.shape, roots.at.shape[1], tokens.device
    embedded = network.embed_block(take(tokens, roots.at), n_drafts)
    n_slots = embedded.shape[2]
    block = torch.arange(n_roots, device=device).repeat_interleave(n_slots)
    slot = torch.arange(n_slots, device=device).repeat(n_roots)
    own = block == block[:, None]
    if network.spec.causal_block:
        own &= slot <= slot[:, None]
    read = torch.arange(n, device=device).expand(n_texts, -1)
    positions = roots.at[:, block] + slot
    sees = torch.cat((read[:, None] < roots.at[:, block, None], own.expand(n_texts, -1, -1)), dim=2)
    mask = additive(sees, positions, torch.cat((read, positions), dim=1), network.shape.window, embedded.dtype)
    kept = [[context] for context in network.context(network.fuse(tapped), read)]
    outputs = network(embedded.flatten(1, 2), positions, attention(mask, kept))
    return list(network.select_drafting(outputs.unflatten(1, (n_roots, n_slots))).unbind(2))


def markov_logits(network: DFlash, outputs: list[Tensor], tokens: Tensor, roots: Roots) -> list[Tensor]:
    """Logits ``[b, m, draft_vocab_size]`` of every depth, with what the text's tokens before the drafts add to them."""
    states, scored = None, []
    for depth, output in enumerate(outputs):
        logits = network.logits(output)
        if network.spec.markov_rank:
            added, states = network.markov(take(tokens, roots.at + depth), output, states)
            logits = logits + added
        scored.append(logits)
    return scored
