"""The drafts of a batch of texts: one training forward pass for each method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from app.training.batches import Roots, take
from engine.drafter.networks.build import AnyNetwork
from engine.drafter.networks.dflash import DFlash
from engine.drafter.networks.layer import Attend
from engine.drafter.networks.medusa import Medusa
from engine.drafter.networks.pairs import PairNetwork

Kept = list[list[tuple[Tensor, Tensor]]]  # of each layer keys and values [b, n, n_kv_heads, head_dim], in parts


@dataclass(frozen=True, slots=True)
class DraftedDepth:
    """Drafts of the first ``c`` roots at one depth; all tokens before them are the text's."""

    logits: Tensor  # [b, c, draft_vocab_size]
    states: Tensor | None = None  # [b, c, hidden], if the drafter predicts the target's final states
    chances: Tensor | None = None  # [b, c], estimated chances of acceptance


def draft(network: AnyNetwork, tokens: Tensor, states: Tensor, roots: Roots, counts: list[int]) -> list[DraftedDepth]:
    """The drafts at depths 0, 1, .. after tokens int64 ``[b, n]`` with the target's states ``[b, n, width]``.

    ``counts`` is how many roots reach each depth, the first ones; only groups of masks take fewer than all.
    """
    if isinstance(network, Medusa):
        logits = network(take(states, roots.at - 1))
        return [DraftedDepth(logits[:, :count, depth]) for depth, count in enumerate(counts)]
    if isinstance(network, DFlash):
        return _scored_blocks(network, tokens, roots, block_outputs(network, tokens, states, roots, len(counts)))
    fused = network.fuse(states) if network.spec.reads_states else None
    if network.spec.method == "eagle":
        assert fused is not None, "EAGLE reads states"
        outputs = step_outputs(network, tokens, fused, roots, len(counts))
    else:
        outputs = group_outputs(network, tokens, fused, roots, counts)
    predicts_states = not network.spec.has_final_norm
    return [DraftedDepth(network.logits(output), output if predicts_states else None) for output in outputs]


def step_outputs(network: PairNetwork, tokens: Tensor, states: Tensor, roots: Roots, n_steps: int) -> list[Tensor]:
    """Outputs ``[b, m, hidden]`` of each step of EAGLE, fed with its own outputs as in drafting (arXiv 2503.01840).

    The first step runs all rows on the target's states. The next ones run only the rows of the roots: each sees the
    first step's rows up to its own, and its own rows of earlier steps. Its token is the text's.
    """
    n, (n_texts, n_roots), device = tokens.shape[1] - 1, roots.at.shape, tokens.device
    real, ends = torch.arange(n, device=device).expand(n_texts, -1), roots.at - 1
    kept: Kept = [[] for _ in range(network.shape.n_layers)]
    attend = masked_attention(_causal(n, n_texts, device), real, real, network.shape.window, kept)
    outputs = take(network(network.embed_tokens(tokens[:, 1:]), states[:, :n], real, attend), ends)
    found, own = [outputs], torch.eye(n_roots, dtype=torch.bool, device=device).expand(n_texts, -1, -1)
    sees, key_positions = real[:, None] <= ends[:, :, None], real
    for step in range(1, n_steps):
        positions = ends + step
        sees, key_positions = torch.cat((sees, own), dim=2), torch.cat((key_positions, positions), dim=1)
        attend = masked_attention(sees, positions, key_positions, network.shape.window, kept)
        embedded = network.embed_tokens(take(tokens, roots.at + step))
        outputs = network(embedded, network.next_states(outputs), positions, attend)
        found.append(outputs)
    return found


def group_outputs(
    network: PairNetwork, tokens: Tensor, states: Tensor | None, roots: Roots, counts: list[int]
) -> list[Tensor]:
    """Outputs ``[b, counts[d], hidden]`` of the roots' rows, then of their masks 1, 2, .. (arXiv 2410.05589, 4.1).

    A group is a root's row and its masks at the positions that follow. Masks see the text's rows up to the root and the
    earlier masks of their group. P-EAGLE (arXiv 2602.01469) differs only in that most groups stop early.
    """
    shift = 0 if states is None else 1  # a pair's row has the position of its state
    n, device = tokens.shape[1] - shift, tokens.device
    ends = roots.at - shift
    group = torch.cat([torch.arange(count, device=device) for count in (0, *counts[1:])])
    reached = torch.tensor(counts[1:], dtype=torch.int64, device=device)
    depth = torch.arange(1, len(counts), device=device).repeat_interleave(reached)
    real = torch.arange(n, device=device).expand(len(tokens), -1)
    positions = torch.cat((real, ends[:, group] + depth), dim=1)
    mask_embedded, mask_states = network.mask_rows(len(counts) - 1)
    embedded = _append_masks(network.embed_tokens(tokens[:, shift:]), mask_embedded[depth - 1])
    if states is not None:
        assert mask_states is not None, "masks of a drafter that reads states have states"
        states = _append_masks(states[:, :n], mask_states[depth - 1])
    sees = torch.zeros(len(tokens), n + len(group), n + len(group), dtype=torch.bool, device=device)
    sees[:, :n, :n] = _causal(n, len(tokens), device)
    sees[:, n:, :n] = torch.arange(n, device=device) <= ends[:, group, None]
    sees[:, n:, n:] = (group == group[:, None]) & (depth <= depth[:, None])
    kept: Kept = [[] for _ in range(network.shape.n_layers)]
    attend = masked_attention(sees, positions, positions, network.shape.window, kept)
    outputs = network(embedded, states, positions, attend)
    return [take(outputs[:, :n], ends), *outputs[:, n:].split(counts[1:], dim=1)]


def block_outputs(network: DFlash, tokens: Tensor, tapped: Tensor, roots: Roots, n_drafts: int) -> list[Tensor]:
    """Outputs ``[b, m, hidden]`` of the slots that draft, in a block at each root (DFlash, arXiv 2602.06036).

    A block sees the text's states before its root, and its own slots: all of them, or only earlier ones.
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
    kept = [[context] for context in network.context(network.fuse(tapped), read)]
    attend = masked_attention(sees, positions, torch.cat((read, positions), dim=1), network.shape.window, kept)
    outputs = network(embedded.flatten(1, 2), positions, attend)
    return list(network.select_drafting(outputs.unflatten(1, (n_roots, n_slots))).unbind(2))


def _scored_blocks(network: DFlash, tokens: Tensor, roots: Roots, outputs: list[Tensor]) -> list[DraftedDepth]:
    """Drafts of a block's slots, with what its Markov and confidence heads read from the text's previous token."""
    states, found = None, []
    for depth, output in enumerate(outputs):
        logits, previous = network.logits(output), take(tokens, roots.at + depth)
        if network.spec.markov_rank:
            added, states = network.markov(previous, output, states)
            logits = logits + added
        chances = network.estimate_acceptance(output, previous) if network.spec.has_confidence else None
        found.append(DraftedDepth(logits, chances=chances))
    return found


def masked_attention(sees: Tensor, positions: Tensor, key_positions: Tensor, window: int | None, kept: Kept) -> Attend:
    """Attention over each layer's kept keys and values and those of the new rows, which are then kept too.

    Shapes: ``sees`` bool ``[b, rows, keys]``, with keys in the order in which they are kept; ``positions`` int64
    ``[b, rows]``; ``key_positions`` int64 ``[b, keys]``. A row sees at most ``window`` positions, its own included.
    """
    if window is not None:
        sees = sees & (positions[:, :, None] - key_positions[:, None] < window)

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        kept[layer].append((key, value))
        keys, values = (torch.cat(parts, dim=1) for parts in zip(*kept[layer], strict=True))
        q, k, v = (x.transpose(1, 2) for x in (query, keys, values))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=sees[:, None], enable_gqa=True).transpose(1, 2)

    return attend


def _causal(n: int, n_texts: int, device: torch.device) -> Tensor:
    """Bool ``[n_texts, n, n]``: a row sees itself and earlier rows."""
    return torch.ones(n, n, dtype=torch.bool, device=device).tril().expand(n_texts, n, n)


def _append_masks(real: Tensor, masks: Tensor) -> Tensor:
    return torch.cat((real, masks.to(real.dtype).expand(len(real), -1, -1)), dim=1)
