"""Tiny random drafters of every method, in float64, and the parts of their target that they use."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from engine.drafter.networks.base import TargetParts
from engine.drafter.networks.build import AnyNetwork, load_network, new_network
from engine.drafter.spec import DrafterSpec, LayerShape

VOCAB, HIDDEN, MASK = 23, 12, 22
LAYER = LayerShape(1, HIDDEN, ffn_size=20, n_heads=4, n_kv_heads=2, head_dim=6, rope_theta=100.0, rms_norm_eps=1e-5)
TWO_LAYERS = replace(LAYER, n_layers=2)
QWEN3 = replace(TWO_LAYERS, qk_norm=True)
BIASED = replace(LAYER, attention_bias=True, output_bias=True)
_PLAIN = DrafterSpec("eagle", 1, HIDDEN, VOCAB, VOCAB, taps=(), layers=LAYER)
_EAGLE3 = replace(_PLAIN, generation=3, taps=(1, 3, 4), own_head=True, draft_vocab_size=11)
_P_EAGLE = replace(_EAGLE3, method="p-eagle", generation=1, mask_token_id=MASK, has_mask_state=True, n_drafts=4)
_DFLASH = replace(_PLAIN, method="dflash", taps=(0, 2), layers=QWEN3, mask_token_id=MASK, n_drafts=3)
_DSPARK = replace(
    _DFLASH, sample_from_anchor=True, markov_rank=5, own_head=True, own_embedding=True, confidence_with_markov=True
)

EAGLE = {
    "eagle": _PLAIN,
    "eagle with biases": replace(_PLAIN, fc_bias=True, layers=BIASED),
    "eagle of two layers": replace(_PLAIN, layers=TWO_LAYERS, own_embedding=True),
    "eagle 3": _EAGLE3,
    "eagle 3.1": replace(_EAGLE3, fc_norm=True, norm_output=True, own_embedding=True),
    "eagle 3, norms first": replace(_EAGLE3, norm_before_fc=True, norm_before_residual=True, layers=QWEN3),
    "eagle 3, narrower": replace(
        _EAGLE3, layers=replace(LAYER, hidden_size=8), own_embedding=True, target_hidden_size=10
    ),
}
PARALLEL = {
    "parallelspec-eagle": replace(_PLAIN, method="parallelspec-eagle", n_drafts=4, has_mask_state=True),
    "parallelspec-medusa": replace(
        _PLAIN, method="parallelspec-medusa", n_drafts=3, layers=BIASED, has_mask_state=True
    ),
    "parallelspec-eagle, masks without states": replace(_PLAIN, method="parallelspec-eagle", n_drafts=2),
    "parallelspec-medusa on tokens": replace(_PLAIN, method="parallelspec-medusa", n_drafts=3, reads_states=False),
    "p-eagle": _P_EAGLE,
    "p-eagle with norms": replace(_P_EAGLE, layers=TWO_LAYERS, norm_before_fc=True, fc_norm=True),
}
DFLASH = {
    "dflash": _DFLASH,
    "jetspec": replace(_DFLASH, causal_block=True),
    "dspark": replace(_DSPARK, has_confidence=True, draft_vocab_size=11),
    "dspark, gated": replace(_DSPARK, markov_head="gated", has_confidence=True, confidence_with_markov=False),
    "dspark, rnn": replace(_DSPARK, markov_head="rnn", sample_from_anchor=False),
}
MEDUSA = replace(_PLAIN, method="medusa", layers=None, n_heads=3, n_head_layers=2, own_head=True)
CUT = {  # they score with rows of the target's head
    f"{name}, cut": replace(spec, own_head=False, draft_vocab_size=14)
    for name, spec in {
        "medusa": MEDUSA,
        "eagle": _PLAIN,
        "eagle 3": _EAGLE3,
        "parallelspec-eagle": PARALLEL["parallelspec-eagle"],
    }.items()
}


@dataclass(frozen=True, slots=True)
class TinyDrafter:
    """A network, and its weights and its target's for the oracle."""

    spec: DrafterSpec
    network: AnyNetwork
    weights: dict[str, np.ndarray]
    embedding: np.ndarray  # of the target, [VOCAB, target_hidden]
    head: np.ndarray  # of the target, [VOCAB, target_hidden]
    rows: np.ndarray  # of the target's head for the drafter's tokens, [draft_vocab_size, target_hidden]


def tiny_drafter(spec: DrafterSpec, draft_ids: Tensor | None = None) -> TinyDrafter:
    """Weights of size about one everywhere, of norms and biases too; ``draft_ids``: as in ``DrafterCheckpoint``."""
    embedding, head = (noise(name, (spec.vocab_size, spec.target_hidden_size)) for name in ("embedding", "head"))
    rows = head if draft_ids is None else head[draft_ids]
    target = TargetParts(embed=lambda tokens: embedding[tokens], head=lambda states: states @ rows.T)
    shapes = {name: weight.shape for name, weight in new_network(spec, target).state_dict().items()}
    tensors = {name: noise(name, tuple(shape)) for name, shape in shapes.items()}
    network = load_network(spec, tensors, target)
    weights = {name: tensor.numpy() for name, tensor in tensors.items()}
    return TinyDrafter(spec, network, weights, embedding.numpy(), head.numpy(), rows.numpy())


def tiny_states(spec: DrafterSpec, n: int) -> Tensor:
    """A target's states at the first ``n`` positions, ``[n, width]``."""
    width = spec.target_hidden_size * max(1, len(spec.taps))
    return torch.stack([noise(f"state {i}", (1, width))[0] * width**0.5 for i in range(n)])


def noise(name: str, shape: tuple[int, ...]) -> Tensor:
    """Numbers determined by name and shape: matrices keep the size of their inputs, vectors are 1 +- 1/3."""
    steps = np.arange(np.prod(shape), dtype=np.float64) * 12.9898 + zlib.crc32(name.encode()) % 997
    uniform = torch.from_numpy((np.sin(steps) * 43758.5453 % 1 * 2 - 1).reshape(shape))
    return uniform * 2.5 / shape[-1] ** 0.5 if len(shape) > 1 else 1 + uniform / 3
