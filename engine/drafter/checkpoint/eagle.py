"""EAGLE-1 and 2 (2401.15077, 2406.16858), EAGLE-3 (2503.01840) and P-EAGLE (2602.01469) in their own layouts.

EAGLE-1 ends with its layer: it has neither norm nor head. EAGLE-3 has both, and a first layer that reads a token's
embedding and a state side by side. Which of both a file is, and what else it has, its tensors tell: the authors'
configs do not. ``norm_output`` is read as it is served everywhere, as the state handed on being normed; SpecForge meant
by it until September 2026 only that the head's input is, which it is in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.drafter.checkpoint import taps
from engine.drafter.checkpoint.configs import EagleConfig, decode
from engine.drafter.checkpoint.layer_shape import layer_shape
from engine.drafter.spec import DrafterSpec
from engine.errors import UnsupportedModelError
from engine.model.spec import ModelSpec


def read_eagle1(folder: Path, config: dict[str, Any], tensors: Mapping[str, Tensor], target: ModelSpec) -> DrafterSpec:
    """The description of an EAGLE-1 or 2, which differ in how they are used."""
    fields = decode(folder, config, EagleConfig)
    return DrafterSpec(
        method="eagle",
        generation=1,
        target_hidden_size=fields.target_hidden_size or fields.hidden_size,
        vocab_size=fields.vocab_size,
        draft_vocab_size=fields.vocab_size,
        taps=(),
        layers=layer_shape(folder, fields, tensors),
        own_embedding="embed.weight" in tensors,
        own_head="head.weight" in tensors,
        fc_bias="fc.bias" in tensors,
    )


def read_eagle3(folder: Path, config: dict[str, Any], tensors: Mapping[str, Tensor], target: ModelSpec) -> DrafterSpec:
    """The description of an EAGLE-3, or of a P-EAGLE, which has a mask's state besides.

    Raises:
        UnsupportedModelError: it reads no taps, or has masks without a token.
    """
    fields = decode(folder, config, EagleConfig)
    parallel = "mask_state" in tensors
    mask = mask_token(fields) if parallel else None
    if parallel and mask is None:
        raise UnsupportedModelError(f"{folder / 'config.json'} lacks mask_token_id, which P-EAGLE's mask rows embed")
    return DrafterSpec(
        method="p-eagle" if parallel else "eagle",
        generation=1 if parallel else 3,
        target_hidden_size=fields.target_hidden_size or fields.hidden_size,
        vocab_size=fields.vocab_size,
        draft_vocab_size=fields.draft_vocab_size or head_rows(tensors) or fields.vocab_size,
        taps=_taps(folder, fields, target),
        layers=layer_shape(folder, fields, tensors),
        own_embedding="embed.weight" in tensors,
        own_head="head.weight" in tensors,
        norm_before_fc=fields.norm_before_fc or "fc_norm.weight" in tensors,
        fc_norm=fields.fc_norm or "fc_norms.0.weight" in tensors,
        norm_output=bool(fields.norm_output),
        norm_before_residual=fields.norm_before_residual,
        mask_token_id=mask,
        has_mask_state=parallel,
    )


def mask_token(fields: EagleConfig) -> int | None:
    """The token of mask rows, whose field has four names; vLLM looks for them in this order."""
    inner = fields.dflash_config.mask_token_id if fields.dflash_config else None
    named = (inner, fields.mask_token_id, fields.pard_token, fields.ptd_token_id)
    return next((token for token in named if token is not None), None)


def head_rows(tensors: Mapping[str, Tensor]) -> int | None:
    """Tokens that a drafter's own head knows; None: it has none."""
    return len(tensors["head.weight"]) if "head.weight" in tensors else None


def _taps(folder: Path, fields: EagleConfig, target: ModelSpec) -> tuple[int, ...]:
    nvidia = fields.eagle_config
    if nvidia is not None and not nvidia.use_aux_hidden_state:
        raise UnsupportedModelError(
            f"{folder}: eagle_config.use_aux_hidden_state is false: an EAGLE-3 that reads no layer's state is not run"
        )
    if fields.target_layer_ids is not None:
        return fields.target_layer_ids
    ids = fields.eagle_aux_hidden_state_layer_ids or (nvidia.eagle_aux_hidden_state_layer_ids if nvidia else None)
    return taps.of_inputs(ids, target.n_layers)
