"""Writes a trained drafter in the public layout of its method, so that other engines load it, too."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from engine.drafter.checkpoint import taps
from engine.drafter.checkpoint.checkpoint import DrafterCheckpoint
from engine.drafter.checkpoint.layer_shape import layer_fields
from engine.drafter.checkpoint.layouts import OWN
from engine.drafter.checkpoint.public_names import FIRST, MIDDLE, published
from engine.drafter.checkpoint.shapes import check_tensors
from engine.drafter.checkpoint.vocabulary import membership_table, offset_table
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError
from engine.model.spec import ModelSpec

WEIGHTS = "model.safetensors"
MEDUSA_WEIGHTS = "medusa_lm_head.safetensors"


def write_drafter(folder: Path, checkpoint: DrafterCheckpoint, target: ModelSpec, target_name: str = "") -> None:
    """A drafter as a config.json and one file of tensors; ``read_drafter`` gives the same back.

    Layouts: EAGLE-1 its authors', EAGLE-3 SpecForge's, Medusa its authors' (as safetensors), DFlash its authors' with
    SpecForge's names for DSpark's heads, P-EAGLE speculators', ParallelSpec our own.

    Args:
        folder: made if it is not there; files of these names in it are replaced.
        checkpoint: what to write.
        target: whose drafter it is; public layouts name some of its sizes.
        target_name: its directory or hub id, where the layout has a field for it.

    Raises:
        ConfigError: the layout has no way to say what this drafter is.
        UnsupportedModelError: the tensors are not those of the drafter's description.
    """
    spec, tensors = checkpoint.spec, checkpoint.tensors
    check_tensors(folder, spec, tensors)
    file = MEDUSA_WEIGHTS if spec.method == "medusa" else WEIGHTS
    if spec.method == "medusa":
        named = published(tensors, n_blocks=spec.n_head_layers)
    elif spec.method.startswith("parallelspec"):
        named = tensors
    else:
        named = published(tensors, MIDDLE if _is_eagle3(spec) else FIRST)
    config = _config(spec, target, target_name)
    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in (named | _vocabulary(checkpoint)).items()}
    save_file(_apart(plain), folder / file, metadata={"format": "pt"})
    (folder / file).chmod(0o644)  # it is written for its owner alone, and a server may be another user
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _config(spec: DrafterSpec, target: ModelSpec, target_name: str) -> dict[str, Any]:
    if spec.method == "medusa":
        return _medusa(spec, target_name)
    if spec.method.startswith("parallelspec"):
        return {OWN: asdict(spec)}
    assert spec.layers is not None, f"{spec.method} has transformer layers"
    layers = layer_fields(spec.layers) | {
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": target.max_positions,
    }
    if spec.method == "p-eagle":
        return _p_eagle(spec, layers, target_name)
    if spec.method == "dflash":
        return _dflash(spec, layers, target)
    if spec.generation == 3:
        return _eagle3(spec, layers)
    return {"architectures": ["LlamaForCausalLM"], "bias": spec.fc_bias} | layers


def _medusa(spec: DrafterSpec, target_name: str) -> dict[str, Any]:
    return {
        "medusa_num_heads": spec.n_heads,
        "medusa_num_layers": spec.n_head_layers,
        "base_model_name_or_path": target_name,
        "hidden_size": spec.target_hidden_size,
        "vocab_size": spec.vocab_size,
    }


def _eagle3(spec: DrafterSpec, layers: dict[str, Any]) -> dict[str, Any]:
    if layers["num_hidden_layers"] != 1:
        raise ConfigError(f"EAGLE-3's layout has one layer, this drafter {layers['num_hidden_layers']}")
    ids = {"eagle_aux_hidden_state_layer_ids": taps.as_inputs(spec.taps), "use_aux_hidden_state": True}
    flags = {"norm_output": True} if spec.norm_output else {}  # false would mean more than that to older SpecForge
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": spec.draft_vocab_size,
        "target_hidden_size": spec.target_hidden_size,
        "eagle_config": ids,
        "target_layer_ids": list(spec.taps),  # which cannot be misread, as the others are by some
        "norm_before_residual": spec.norm_before_residual,
        "norm_before_fc": spec.norm_before_fc,
        "fc_norm": spec.fc_norm,
        **flags,
        **layers,
    }


def _p_eagle(spec: DrafterSpec, layers: dict[str, Any], target_name: str) -> dict[str, Any]:
    ways = [] if spec.n_drafts is None else [{"proposal_type": "greedy", "speculative_tokens": spec.n_drafts}]
    return {
        "architectures": ["PEagleSpeculator"],
        "speculators_model_type": "peagle",
        "speculators_config": {
            "algorithm": "peagle",
            "proposal_methods": ways,
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": target_name or None, "architectures": []},
        },
        "transformer_layer_config": layers,
        "draft_vocab_size": spec.draft_vocab_size,
        "target_hidden_size": spec.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": taps.as_inputs(spec.taps),
        "target_layer_ids": list(spec.taps),
        "mask_token_id": spec.mask_token_id,
        "norm_before_residual": spec.norm_before_residual,
        "norm_before_fc": spec.norm_before_fc,
        "fc_norm": spec.fc_norm,
        "norm_output": spec.norm_output,
    }


def _dflash(spec: DrafterSpec, layers: dict[str, Any], target: ModelSpec) -> dict[str, Any]:
    heads: dict[str, Any] = {}
    if spec.markov_rank or spec.has_confidence:
        heads = {
            "projector_type": "dspark",
            "markov_rank": spec.markov_rank,
            "markov_head_type": spec.markov_head,
            "enable_confidence_head": spec.has_confidence,
            "confidence_head_with_markov": spec.confidence_with_markov,
        }
    return {
        "architectures": ["DSparkDraftModel" if heads else "DFlashDraftModel"],
        "block_size": (spec.n_drafts or 0) + (0 if spec.sample_from_anchor else 1),
        "num_target_layers": target.n_layers,
        "dflash_config": {
            "target_layer_ids": list(spec.taps),
            "mask_token_id": spec.mask_token_id,
            "causal_head": spec.causal_block,
            "shift_label": spec.sample_from_anchor,
            **heads,
        },
        **layers,
    }


def _vocabulary(checkpoint: DrafterCheckpoint) -> dict[str, Tensor]:
    ids = checkpoint.draft_ids
    if ids is None:
        return {}
    return {"d2t": offset_table(ids), "t2d": membership_table(ids, checkpoint.spec.vocab_size)}


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with memory of their own: Medusa's blocks may be one, which the format cannot say."""
    seen: set[int] = set()
    alone: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        alone[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return alone


def _is_eagle3(spec: DrafterSpec) -> bool:
    return spec.method == "eagle" and spec.generation == 3
