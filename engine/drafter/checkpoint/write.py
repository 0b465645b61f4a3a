"""Writes a trained drafter in the public layout of its method, so that other engines can load it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from engine.drafter.checkpoint.ids import input_ids_of_taps, write_draft_ids
from engine.drafter.checkpoint.layers import write_layer_shape
from engine.drafter.checkpoint.layouts import OWN
from engine.drafter.checkpoint.tensors import MIDLAYER, DrafterCheckpoint, check_tensors, publish_tensors
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError
from engine.model.checkpoint_files import CONFIG
from engine.model.spec import ModelSpec


def write_drafter(folder: Path, checkpoint: DrafterCheckpoint, target: ModelSpec, target_name: str = "") -> None:
    """Writes a drafter as a config.json and one file of tensors, which ``read_drafter`` reads back unchanged.

    Layouts: EAGLE-1, Medusa (as safetensors) and DFlash: their authors'; EAGLE-3 and DSpark: SpecForge's; P-EAGLE:
    speculators'; ParallelSpec: our own.

    Args:
        folder: created if missing; files of the same names are replaced.
        checkpoint: the drafter.
        target: the model it drafts for; some layouts record its sizes.
        target_name: the target's directory or hub id, for layouts with such a field.

    Raises:
        ConfigError: the layout cannot describe this drafter.
        UnsupportedModelError: the tensors do not match the spec.
    """
    spec, tensors = checkpoint.spec, checkpoint.tensors
    check_tensors(folder, spec, tensors)
    config = _write_config(spec, target, target_name)
    if not spec.is_parallelspec:
        tensors = publish_tensors(spec, tensors)
    if spec.method == "eagle" and spec.generation == 3:
        tensors = {name.replace("layers.0.", MIDLAYER): tensor for name, tensor in tensors.items()}
    if checkpoint.draft_ids is not None:
        tensors = tensors | write_draft_ids(checkpoint.draft_ids, spec.vocab_size)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ("medusa_lm_head.safetensors" if spec.method == "medusa" else "model.safetensors")
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(_separate_memory(plain), file, metadata={"format": "pt"})
    file.chmod(0o644)  # the library makes it private, but the server may run as another user
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _write_config(spec: DrafterSpec, target: ModelSpec, target_name: str) -> dict[str, Any]:
    if spec.is_parallelspec:
        return {OWN: asdict(spec)}
    if spec.layers is None:
        return {
            "medusa_num_heads": spec.n_heads,
            "medusa_num_layers": spec.n_head_layers,
            "base_model_name_or_path": target_name,
            "hidden_size": spec.target_hidden_size,
            "vocab_size": spec.vocab_size,
        }
    layers = {"vocab_size": spec.vocab_size, "max_position_embeddings": target.max_positions}
    layers |= write_layer_shape(spec.layers)
    if spec.method == "dflash":
        return _write_dflash(spec, target) | layers
    if spec.method == "p-eagle":
        return _write_eagle3(spec) | _write_p_eagle(spec, layers, target_name)
    if spec.generation == 1:
        return {"architectures": ["LlamaForCausalLM"], "bias": spec.fc_bias} | layers
    if spec.layers.n_layers != 1:
        raise ConfigError(f"the drafter has {spec.layers.n_layers} layers; EAGLE-3's layout allows only one")
    ids = {"eagle_aux_hidden_state_layer_ids": input_ids_of_taps(spec.taps), "use_aux_hidden_state": True}
    named = {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": ids}
    flags = {"norm_output": True} if spec.norm_output else {}  # older SpecForge gives false another meaning
    return named | _write_eagle3(spec) | flags | layers


def _write_eagle3(spec: DrafterSpec) -> dict[str, Any]:
    """Fields that EAGLE-3 and P-EAGLE share."""
    return {
        "draft_vocab_size": spec.draft_vocab_size,
        "target_hidden_size": spec.target_hidden_size,
        "target_layer_ids": list(spec.taps),  # unambiguous; engines count the other ids differently
        "norm_before_residual": spec.norm_before_residual,
        "norm_before_fc": spec.norm_before_fc,
        "fc_norm": spec.fc_norm,
    }


def _write_p_eagle(spec: DrafterSpec, layers: dict[str, Any], target_name: str) -> dict[str, Any]:
    greedy = {"proposal_type": "greedy", "speculative_tokens": spec.n_drafts}
    return {
        "architectures": ["PEagleSpeculator"],
        "speculators_model_type": "peagle",
        "speculators_config": {
            "algorithm": "peagle",
            "proposal_methods": [] if spec.n_drafts is None else [greedy],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": target_name or None, "architectures": []},
        },
        "transformer_layer_config": layers,
        "eagle_aux_hidden_state_layer_ids": input_ids_of_taps(spec.taps),
        "mask_token_id": spec.mask_token_id,
        "norm_output": spec.norm_output,
    }


def _write_dflash(spec: DrafterSpec, target: ModelSpec) -> dict[str, Any]:
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
    }


def _separate_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors that share memory, which safetensors cannot store; Medusa's blocks may."""
    seen: set[int] = set()
    separate: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        address = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    return separate
