"""Writes a trained drafter in the public layout of its method, so that other engines can load it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from engine.drafter.checkpoint.ids import input_ids_of_taps, write_draft_ids
from engine.drafter.checkpoint.layers import write_layer_shape
from engine.drafter.checkpoint.layouts import OWN, uses_own_layout
from engine.drafter.checkpoint.tensors import MIDLAYER, DrafterCheckpoint, check_tensors, publish_tensors
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError
from engine.model.checkpoint_files import CONFIG
from engine.model.spec import ModelSpec

EAGLE3_DRAFTS = 5  # draft length recorded for other engines


def write_drafter(folder: Path, checkpoint: DrafterCheckpoint, target: ModelSpec, target_name: str = "") -> None:
    """Writes a drafter as a config.json and one file of tensors, which ``read_drafter`` reads back unchanged.

    Layouts: EAGLE-1, Medusa (as safetensors) and DFlash: their authors'; EAGLE-3 and DSpark: SpecForge's; P-EAGLE:
    speculators'; ParallelSpec, and drafters that score with rows of the target's head: our own.

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
    name, ids = "model.safetensors", checkpoint.draft_ids
    if not uses_own_layout(spec):
        tensors = publish_tensors(spec, tensors)
        name = "medusa_lm_head.safetensors" if spec.method == "medusa" else name
        if spec.method == "eagle" and spec.generation == 3:
            tensors = {key.replace("layers.0.", MIDLAYER): tensor for key, tensor in tensors.items()}
    tables = {} if ids is None else write_draft_ids(ids, spec.vocab_size)
    _write_files(folder, name, config, tensors | tables)


def write_speculators(
    folder: Path, checkpoint: DrafterCheckpoint, target: ModelSpec, target_name: str, head: Tensor
) -> None:
    """Writes an EAGLE-3 in the layout of vLLM's speculators, which has a head.

    Args:
        folder: as in ``write_drafter``.
        checkpoint: the drafter.
        target: the model it drafts for.
        target_name: the target's directory or hub id.
        head: ``[draft_vocab_size, hidden]``, for a drafter without a head of its own: the target's rows.
    """
    spec = replace(checkpoint.spec, own_head=True)
    tensors = {"head.weight": head.to(checkpoint.tensors["fc.weight"].dtype), **checkpoint.tensors}
    check_tensors(folder, spec, tensors)
    ids = {} if checkpoint.draft_ids is None else write_draft_ids(checkpoint.draft_ids, spec.vocab_size)
    config = _write_speculators(spec, _write_layers(spec, target), target_name)
    _write_files(folder, "model.safetensors", config, publish_tensors(spec, tensors) | ids)


def _write_files(folder: Path, name: str, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(_separate_memory(plain), folder / name, metadata={"format": "pt"})
    (folder / name).chmod(0o644)  # the library makes it private, but the server may run as another user
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _write_layers(spec: DrafterSpec, target: ModelSpec) -> dict[str, Any]:
    assert spec.layers is not None
    sizes = {"vocab_size": spec.vocab_size, "max_position_embeddings": target.max_positions}
    return sizes | write_layer_shape(spec.layers)


def _write_config(spec: DrafterSpec, target: ModelSpec, target_name: str) -> dict[str, Any]:
    if uses_own_layout(spec):
        return {OWN: asdict(spec)}
    if spec.layers is None:
        return {
            "medusa_num_heads": spec.n_heads,
            "medusa_num_layers": spec.n_head_layers,
            "base_model_name_or_path": target_name,
            "hidden_size": spec.target_hidden_size,
            "vocab_size": spec.vocab_size,
        }
    layers = _write_layers(spec, target)
    if spec.method == "dflash":
        return _write_dflash(spec, target) | layers
    if spec.method == "p-eagle":
        masks = {"mask_token_id": spec.mask_token_id}
        return _write_speculators(spec, layers, target_name) | masks
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


def _write_speculators(spec: DrafterSpec, layers: dict[str, Any], target_name: str) -> dict[str, Any]:
    """Fields of speculators' EAGLE-3 and P-EAGLE."""
    kind, architecture = ("eagle3", "Eagle3DraftModel") if spec.method == "eagle" else ("peagle", "PEagleSpeculator")
    n_drafts = EAGLE3_DRAFTS if spec.method == "eagle" else spec.n_drafts
    greedy = {"proposal_type": "greedy", "speculative_tokens": n_drafts}
    return _write_eagle3(spec) | {
        "architectures": [architecture],
        "speculators_model_type": kind,
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [] if n_drafts is None else [greedy],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": target_name or None, "architectures": []},
        },
        "transformer_layer_config": layers,
        "eagle_aux_hidden_state_layer_ids": input_ids_of_taps(spec.taps),
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
