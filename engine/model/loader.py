"""Loads a range of layers from a checkpoint; a stage never reads another stage's tensors."""

from __future__ import annotations

from collections.abc import Container
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, GenerationConfig

from engine.errors import ConfigError, UnsupportedModelError
from engine.model.build import empty_model, put_weight
from engine.model.checkpoint_files import (
    ADAPTER,
    CONFIG,
    GENERATION_CONFIG,
    SINGLE,
    check_format,
    files_of_tensors,
    read_generation_config,
    read_json_object,
    reason_of,
)
from engine.model.exchange import Ranks, put_ranks
from engine.model.families import get_family
from engine.model.gguf.folder import SOURCE, refers_to_gguf
from engine.model.matrices.layout import WeightLayout
from engine.model.matrices.quantization import (
    BITSANDBYTES,
    Quantization,
    check_quantization,
    stored_quantization,
)
from engine.model.ranges import LayerRange
from engine.model.resolve import revision_of
from engine.model.shard import ModelShard
from engine.model.share import WHOLE, RankShare
from engine.model.spec import ModelSpec, check_values, declared_dtype, read_spec, token_ids
from engine.model.weight_requests import WeightRequests
from engine.model.weights.meter import Meter
from engine.model.weights.tensors import CheckpointTensors

MODELOPT = "hf_quant_config.json"  # where older checkpoints of ModelOpt describe their quantisation
EMBED = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


def load_spec(path: Path) -> ModelSpec:
    """Read sizes, limits and EOS ids; like ``generate``, prefers the EOS ids of the generation config.

    Raises:
        UnsupportedModelError: the architecture or the checkpoint's format is not supported. The format of a snapshot of
            the hub is checked only when its weights are read.
    """
    config = load_config(path)
    if not revision_of(path):  # a snapshot may have no weights yet
        check_format(path)
    return read_spec(config, _generation_eos(path))


def _generation_eos(path: Path) -> tuple[int, ...] | None:
    """Return the EOS ids of generation_config.json; None if the file is ignored or has none."""
    if read_generation_config(path) is None:
        return None
    file = path / GENERATION_CONFIG
    try:
        found = GenerationConfig.from_pretrained(path).eos_token_id
    except Exception as error:  # of any kind
        raise UnsupportedModelError(f"{file} cannot be read: {reason_of(error)}") from error
    return None if found is None else token_ids(found, f"{file}: eos_token_id")


def load_config(path: Path) -> Any:
    """Read the checkpoint's Hugging Face config.

    Raises:
        UnsupportedModelError: the config is missing, or its model is not supported; names the file and the key.
    """
    file = path / CONFIG
    if not file.exists() and (path / ADAPTER).exists():
        base = read_json_object(path / ADAPTER).get("base_model_name_or_path")
        raise UnsupportedModelError(
            f"{path} is an adapter, as of LoRA ({ADAPTER} without {CONFIG}); merge it into its base model {base!r} and "
            f"serve the merged checkpoint"
        )
    stored = read_json_object(file)
    try:
        check_values(stored)
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, dtype=declared_dtype(stored))
        if not stored.get("quantization_config") and (path / MODELOPT).exists():
            file = path / MODELOPT  # errors name it from here on
            found = read_json_object(file).get("quantization")
            config.quantization_config = {"quant_method": "modelopt", **(found if isinstance(found, dict) else {})}
        read_spec(config)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{file}: {error}") from error
    except Exception as error:  # of any kind: transformers checks few values before it computes with them
        raise UnsupportedModelError(f"{file} holds no config of a supported model: {reason_of(error)}") from error
    return config


def check_weights(path: Path) -> None:
    """Check all tensors by the headers of the weight files.

    Raises:
        UnsupportedModelError: a file or a tensor is missing or cut short, or has another shape than the config says.
    """
    config = load_config(path)
    model, layers = empty_model(config), LayerRange(0, config.num_hidden_layers, config.num_hidden_layers)
    layout = _stored_layout(config)
    with closing(CheckpointTensors(path, torch.device("cpu"))) as tensors:
        for name, source in _find_sources(model, layers, tensors, embeds=True).items():
            shape, owner = model.get_parameter(name).shape, source.removesuffix(".weight")
            if layout is not None and layout.has_matrix(owner, tensors):
                tensors.check_matrix(owner, layout, shape)
            else:
                tensors.check(source, shape)


def load_shard(
    path: Path,
    layers: LayerRange,
    *,
    dtype: torch.dtype,
    device: torch.device,
    n_positions: int,
    quantization: str | None = None,
    embeds: bool = False,
    meter: Meter | None = None,
    ranks: Ranks | None = None,
) -> ModelShard:
    """Build the model without memory, then read only the tensors of the range, and of these a rank's share.

    Args:
        path: checkpoint directory.
        layers: the range; the files of other layers need not exist.
        dtype: of activations, and of all weights that are not quantized.
        device: of the weights; they are quantized there, some rows at a time.
        n_positions: length of the longest text, tokens.
        quantization: "int8" or "fp8" for the decoder layers' matrices; None: the checkpoint's.
        embeds: whether a shard that is not the first embeds tokens as well.
        meter: counts the bytes; None: a new one.
        ranks: of the stage, if it has several.

    Raises:
        UnsupportedModelError: the model is not supported, or a tensor of the range is missing, has another shape than
            the config says, or cannot be read.
        ConfigError: ``quantization`` is unknown, or not the checkpoint's, or its package is not installed.
    """
    spec, config = load_spec(path), load_config(path)
    requested, stored = check_quantization(quantization, config, device), stored_quantization(config)
    model, embeds = empty_model(config, dtype), embeds or layers.is_first
    share = WHOLE if ranks is None else ranks.share
    is_gathered = _scales_rows(requested, spec, share)
    with closing(CheckpointTensors(path, device)) as tensors:
        meter = meter or Meter(f"layers {layers.first} to {layers.last - 1}")
        weights = WeightRequests(model, tensors, meter, dtype, device, requested, is_made=stored is None)
        sources = _find_sources(model, layers, tensors, embeds, share)
        for name, source in sources.items():
            weights.request(name, source, share.part(name, model.get_parameter(name).shape, spec, is_gathered))
        weights.read()
    if _is_tied(config) and embeds and layers.is_last:
        own = _head_of_embedding(model.model.embed_tokens.weight, spec, share)
        if HEAD not in sources or torch.equal(model.lm_head.weight, own):
            put_weight(model, HEAD, own)
    for buffer_owner in (model.model.rotary_emb, model.model.embed_tokens):
        for name, buffer in buffer_owner.named_buffers(recurse=False):
            buffer_owner._buffers[name] = buffer.to(device)
    if ranks is not None:
        put_ranks(model, ranks, layers.numbers, spec.vocab_size if layers.is_last else 0, is_gathered)
    return ModelShard(model, spec, layers, n_positions, embeds, ranks)


def _scales_rows(quantization: Quantization | None, spec: ModelSpec, share: RankShare) -> bool:
    """Return whether the linear layers scale whole rows of inputs, as LLM.int8() on a CPU does.

    Raises:
        ConfigError: they do, and ranks cannot share their outputs.
    """
    if quantization is None or quantization.threshold is None:
        return False
    if spec.hidden_size % share.size:
        raise ConfigError(
            f"tensor_parallel is {share.size}; with int8 on a CPU it must divide hidden_size, {spec.hidden_size}"
        )
    return True


def _head_of_embedding(embedding: Tensor, spec: ModelSpec, share: RankShare) -> Tensor:
    """Return a rank's part of a head that is tied to the embedding: a view, unless it needs padding."""
    part = share.part(HEAD, embedding.shape, spec)
    if part is None:
        return embedding
    rows = part.of(embedding)
    n_padding = part.last - part.first - len(rows)
    return functional.pad(rows, (0, 0, 0, n_padding)) if n_padding else rows


def layer_files(path: Path, layers: LayerRange, embeds: bool) -> set[str]:
    """Return the names of the weight files that ``load_shard`` reads for a range; they need not exist yet.

    Raises:
        UnsupportedModelError: the index of the checkpoint lacks a tensor of the range.
    """
    files = files_of_tensors(path)
    if not files:
        return {SOURCE if refers_to_gguf(path) else SINGLE}
    config = load_config(path)
    model, layout = empty_model(config), _stored_layout(config)
    found = set()
    for name in _find_sources(model, layers, files, embeds or layers.is_first).values():
        owner = name.removesuffix(".weight")
        names = [name]
        if layout is not None and layout.has_matrix(owner, files):
            names = [f"{owner}.{suffix}" for suffix in layout.suffixes(owner, files)]
        for one in names:
            if one not in files:
                raise UnsupportedModelError(f"{path} cannot be loaded: its index lacks the tensor {one!r}")
            found.add(files[one])
    return found


def _stored_layout(config: Any) -> WeightLayout | None:
    """Return the layout of a checkpoint's matrices; None: they are in full precision."""
    stored = stored_quantization(config)
    return None if stored is None else stored.layout or BITSANDBYTES


def _is_tied(config: Any) -> bool:
    """Return whether the head is the embedding if the checkpoint stores only one of them."""
    return bool(getattr(config, "tie_word_embeddings", False))


def _find_sources(
    model: Any, layers: LayerRange, stored: Container[str], embeds: bool, share: RankShare = WHOLE
) -> dict[str, str]:
    """Map each parameter of the range that a rank has to the checkpoint's tensor.

    A head that shares the embedding's tensor is left out if the range has both.
    """
    is_tied = _is_tied(model.config)
    is_shared = is_tied and not (EMBED in stored and HEAD in stored)
    spec, family = read_spec(model.config), get_family(model.config.model_type)
    sources = {}
    for name, _ in model.named_parameters(remove_duplicate=False):
        parts = name.split(".")
        if parts[:2] == ["model", "layers"]:
            is_needed = layers.first <= int(parts[2]) < layers.last and share.has(name, spec)
        elif name == EMBED:
            is_needed = embeds
        else:  # the head or the final norm
            is_needed = layers.is_last and not (name == HEAD and is_shared and embeds)
        if is_needed:
            other = {HEAD: EMBED, EMBED: HEAD}.get(name, name)
            is_other = is_tied and name not in stored and other in stored
            sources[name] = other if is_other else family.stored_name(name)
    return sources
