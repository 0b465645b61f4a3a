"""What a drafter makes of a batch of texts: one forward of every method, depth by depth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from app.training.blocks import block_outputs, markov_logits
from app.training.groups import group_outputs
from app.training.steps import step_outputs
from app.training.texts import PaddedTexts, Roots, take
from engine.drafter.networks.build import AnyNetwork
from engine.drafter.networks.dflash import DFlash
from engine.drafter.networks.medusa import Medusa
from engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DraftedDepth:
    """Drafts of the first ``c`` roots at one depth; all before are the text's tokens."""

    logits: Tensor  # [b, c, draft_vocab_size]
    states: Tensor | None  # [b, c, hidden], where outputs are the drafter's guesses of the target's final states
    chances: Tensor | None = None  # [b, c], estimated, of acceptance


def draft(
    network: AnyNetwork, texts: PaddedTexts, roots: Roots, counts: list[int], noise: Tensor | None
) -> list[DraftedDepth]:
    """Drafts of depths 0, 1, .. of a batch's roots.

    Args:
        texts: read, with what of the target's states the method reads.
        counts: of every depth how many roots reach it, the first ones; fewer than all only where groups are trained.
        noise: added to the states that are read, of their shape; None: none.

    Raises:
        ConfigError: the texts lack states, or more drafts are wanted than the drafter has.
    """
    if isinstance(network, Medusa):
        if len(counts) > network.spec.n_heads:
            raise ConfigError(f"n_depths is {len(counts)}: the drafter has {network.spec.n_heads} heads")
        logits = network(take(_noisy(texts.known_final(), noise), roots.at - 1))
        return [DraftedDepth(logits[:, :count, depth], None) for depth, count in enumerate(counts)]
    if isinstance(network, DFlash):
        outputs = block_outputs(network, texts.tokens, _noisy(texts.known_tapped(), noise), roots, len(counts))
        return _with_chances(network, texts, roots, outputs)
    states = None
    if network.spec.reads_states:
        states = network.fuse(_noisy(texts.known_tapped() if network.spec.taps else texts.known_final(), noise))
    if network.spec.method == "eagle":
        assert states is not None, "EAGLE reads states"
        outputs = step_outputs(network, texts.tokens, states, roots, len(counts))
    else:
        outputs = group_outputs(network, texts.tokens, states, roots, counts)
    states_regressed = not network.spec.has_final_norm
    return [DraftedDepth(network.logits(output), output if states_regressed else None) for output in outputs]


def _with_chances(network: DFlash, texts: PaddedTexts, roots: Roots, outputs: list[Tensor]) -> list[DraftedDepth]:
    scored = markov_logits(network, outputs, texts.tokens, roots)
    if not network.spec.has_confidence:
        return [DraftedDepth(logits, None) for logits in scored]
    previous = [take(texts.tokens, roots.at + depth) for depth in range(len(outputs))]
    chances = [network.estimate_acceptance(output, token) for output, token in zip(outputs, previous, strict=True)]
    return [DraftedDepth(logits, None, chance) for logits, chance in zip(scored, chances, strict=True)]


def _noisy(states: Tensor, noise: Tensor | None) -> Tensor:
    return states if noise is None else states + noise


def noise_like(states: Tensor, width: float, generator: torch.Generator | None) -> Tensor:
    """Uniform between ``-width`` and ``width``, of the states' shape."""
    drawn = torch.rand(states.shape, generator=generator, dtype=states.dtype)
    return ((2 * drawn - 1) * width).to(states.device)
