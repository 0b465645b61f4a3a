"""Layouts of vLLM's speculators: eagle3, peagle, dflash and dspark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.drafter.checkpoint import taps
from engine.drafter.checkpoint.configs import SpeculatorsConfig, decode
from engine.drafter.checkpoint.dflash import block_heads
from engine.drafter.checkpoint.eagle import head_rows
from engine.drafter.checkpoint.layer_shape import layer_shape
from engine.drafter.spec import DrafterSpec
from engine.errors import UnsupportedModelError
from engine.model.spec import ModelSpec

TYPES = ("eagle3", "peagle", "dflash", "dspark")


def read_speculators(
    folder: Path, config: dict[str, Any], tensors: Mapping[str, Tensor], target: ModelSpec
) -> DrafterSpec:
    """The description of a drafter that speculators trained or converted.

    Raises:
        UnsupportedModelError: its type is none of ``TYPES``, or it has masks without a token.
    """
    fields = decode(folder, config, SpeculatorsConfig)
    kind = fields.speculators_model_type
    if kind not in TYPES:
        raise UnsupportedModelError(f"{folder}: speculators_model_type is {kind!r}; read are {', '.join(TYPES)}")
    if kind != "eagle3" and fields.mask_token_id is None:
        raise UnsupportedModelError(f"{folder / 'config.json'} lacks mask_token_id, which {kind} cannot do without")
    return _eagle(folder, fields, tensors, target) if kind in TYPES[:2] else _dflash(folder, fields, tensors, target)


def _common(folder: Path, fields: SpeculatorsConfig, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    inner = fields.transformer_layer_config
    return {
        "target_hidden_size": fields.target_hidden_size or inner.hidden_size,
        "vocab_size": inner.vocab_size,
        "draft_vocab_size": fields.draft_vocab_size or head_rows(tensors) or inner.vocab_size,
        "layers": layer_shape(folder, inner, tensors),
        "own_embedding": "embed.weight" in tensors,
        "own_head": "head.weight" in tensors,
    }


def _eagle(folder: Path, fields: SpeculatorsConfig, tensors: Mapping[str, Tensor], target: ModelSpec) -> DrafterSpec:
    parallel = fields.speculators_model_type == "peagle"
    return DrafterSpec(
        method="p-eagle" if parallel else "eagle",
        generation=1 if parallel else 3,
        taps=fields.target_layer_ids or taps.of_inputs(fields.eagle_aux_hidden_state_layer_ids, target.n_layers),
        n_drafts=fields.speculators_config.n_drafts if parallel else None,
        norm_before_fc=fields.norm_before_fc or "fc_norm.weight" in tensors,
        fc_norm=fields.fc_norm or "fc_norms.0.weight" in tensors,
        norm_output=fields.norm_output,
        norm_before_residual=fields.norm_before_residual,
        mask_token_id=fields.mask_token_id if parallel else None,
        has_mask_state="mask_state" in tensors,
        **_common(folder, fields, tensors),
    )


def _dflash(folder: Path, fields: SpeculatorsConfig, tensors: Mapping[str, Tensor], target: ModelSpec) -> DrafterSpec:
    anchored = fields.speculators_model_type == "dspark"
    if fields.sample_from_anchor is not None:
        anchored = fields.sample_from_anchor
    common = _common(folder, fields, tensors)
    ids = fields.aux_hidden_state_layer_ids or taps.as_inputs(taps.outputs_by_default(target.n_layers))
    return DrafterSpec(
        method="dflash",
        generation=1,
        taps=tuple(layer - 1 for layer in ids),
        n_drafts=fields.block_size if anchored else fields.block_size - 1,
        mask_token_id=fields.mask_token_id,
        causal_block=common["layers"].window is not None and not fields.sliding_window_non_causal,
        sample_from_anchor=anchored,
        **block_heads(fields.markov_rank, fields.markov_head_type, fields.confidence_head_with_markov, tensors),
        **common,
    )
