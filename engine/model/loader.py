"""Loads a range of layers from a checkpoint; a stage never reads another stage's tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, GenerationConfig

from engine.errors import UnsupportedModelError
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
from engine.model.gguf.folder import SOURCE, refers_to_gguf
from engine.model.meta_model import empty_model
from engine.model.quantization import INT8, check_quantization, stored_quantization
from engine.model.quantized import SCALES, is_quantized, put_int8
from engine.model.ranges import LayerRange
from engine.model.resolve import revision_of
from engine.model.scaled import DTYPES, put_scaled, scale_of
from engine.model.shard import ModelShard
from engine.model.spec import ModelSpec, check_values, declared_dtype, read_spec, token_ids
from engine.model.weights.meter import Meter
from engine.model.weights.tensors import CheckpointTensors

EMBED = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


def load_spec(path: Path) -> ModelSpec:
    """Architecture and EOS ids (the generation config's, which ``generate`` obeys, before the model config's).

    Raises:
        UnsupportedModelError: the architecture, or the checkpoint's format, is not supported. The format of a hub's
            snapshot shows when its weights are read.
    """
    config = load_config(path)
    if not revision_of(path):  # a snapshot of the hub has what was asked for
        check_format(path)
    return read_spec(config, _generation_eos(path))


def _generation_eos(path: Path) -> tuple[int, ...] | None:
    """EOS ids of generation_config.json; None if the file is ignored or names none."""
    if read_generation_config(path) is None:
        return None
    file = path / GENERATION_CONFIG
    try:
        found = GenerationConfig.from_pretrained(path).eos_token_id
    except Exception as error:  # of any kind
        raise UnsupportedModelError(f"{file} cannot be read: {reason_of(error)}") from error
    return None if found is None else token_ids(found, f"{file}: eos_token_id")


def load_config(path: Path) -> Any:
    """The checkpoint's Hugging Face config.

    Raises:
        UnsupportedModelError: there is none, or none of a supported model; names the file and the key.
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
        read_spec(config)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{file}: {error}") from error
    except Exception as error:  # of any kind: transformers checks few values before it computes with them
        raise UnsupportedModelError(f"{file} holds no config of a supported model: {reason_of(error)}") from error
    return config


def check_weights(path: Path) -> None:
    """Read the headers of all weight files, and nothing of the weights.

    Raises:
        UnsupportedModelError: a file or a tensor is missing or cut short, or has another shape than the config says.
    """
    config = load_config(path)
    model, is_tied = empty_model(config), _is_tied(config)
    with closing(CheckpointTensors(path, torch.device("cpu"))) as tensors:
        for name in _needed(model, LayerRange(0, config.num_hidden_layers, config.num_hidden_layers), False, True):
            tensors.check(_source(name, is_tied, tensors), model.get_parameter(name).shape)


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
) -> ModelShard:
    """Build the model without memory, then read only what the range needs.

    Args:
        path: checkpoint directory.
        layers: the range; other layers' tensors are not read, and their files need not exist.
        dtype: of activations, and of all weights that do not have one byte.
        device: where weights go; they are quantised there, some rows at a time.
        n_positions: longest text the shard will see, tokens.
        quantization: "int8" or "fp8" for the decoder layers' matrices; a checkpoint that has such keeps them anyway.
        embeds: whether the shard embeds tokens though it is not the first.
        meter: counts what is read; one of its own by default.

    Raises:
        UnsupportedModelError: the model is not supported, or a tensor the range needs is not in the checkpoint, has
            another shape there than the config says, or cannot be read.
        ConfigError: ``quantization`` is unknown, or not the checkpoint's, or its package is not installed.
    """
    spec = load_spec(path)
    config = load_config(path)
    requested = check_quantization(quantization, config, device)
    is_made = requested is not None and (requested.name == INT8 or stored_quantization(config) is None)
    model = empty_model(config, dtype)
    tied = _is_tied(config)
    embeds = embeds or layers.is_first
    with closing(CheckpointTensors(path, device)) as tensors:
        shares = tied and not (EMBED in tensors and HEAD in tensors)
        needed = list(_needed(model, layers, shares, embeds))
        matrices = {name for name in needed if requested is not None and is_quantized(model, name)}
        for name in needed:
            source = _source(name, tied, tensors)
            shape = model.get_parameter(name).shape
            as_what = requested if name in matrices else None
            if as_what is not None and as_what.threshold is not None:
                put_int8(model, name, *tensors.ask_int8(source, shape), as_what.threshold)
            elif as_what is not None and (is_made or scale_of(source) in tensors):  # some may be left as they are
                put_scaled(model, name, *tensors.ask_scaled(source, shape, DTYPES[as_what.name]))
            else:
                owner, _, own = name.rpartition(".")
                weight = nn.Parameter(tensors.ask(source, dtype, shape), requires_grad=False)
                setattr(model.get_submodule(owner), own, weight)
        tensors.read(meter or Meter(f"layers {layers.first} to {layers.last - 1}"))
    if tied and embeds and layers.is_last:
        _tie_head(model, shares)
    for buffer_owner in (model.model.rotary_emb, model.model.embed_tokens):
        for name, buffer in buffer_owner.named_buffers(recurse=False):
            buffer_owner._buffers[name] = buffer.to(device)
    return ModelShard(model, spec, layers, n_positions, embeds)


def layer_files(path: Path, layers: LayerRange, embeds: bool) -> set[str]:
    """Names of the weight files that hold what ``load_shard`` reads of a range; the weights need not be here yet.

    Raises:
        UnsupportedModelError: the index of the checkpoint lacks a tensor of the range.
    """
    files = files_of_tensors(path)
    if not files:
        return {SOURCE if refers_to_gguf(path) else SINGLE}
    config = load_config(path)
    tied = _is_tied(config)
    shares = tied and not (EMBED in files and HEAD in files)
    needed = _needed(empty_model(config), layers, shares, embeds or layers.is_first)
    names = {_source(name, tied, files) for name in needed}
    missing = sorted(names - files.keys())
    if missing:
        raise UnsupportedModelError(f"{path} cannot be loaded: its index lacks the tensor {missing[0]!r}")
    scales = {name.removesuffix("weight") + SCALES for name in names} | {scale_of(name) for name in names}
    return {files[name] for name in names | (scales & files.keys())}


def _tie_head(model: Any, shares: bool) -> None:
    """Let head and embedding use one tensor, unless the checkpoint stores a head that differs."""
    embedding = model.model.embed_tokens.weight
    if shares or torch.equal(model.lm_head.weight, embedding):
        model.lm_head.weight = embedding


def _is_tied(config: Any) -> bool:
    """Whether the head is the embedding where the checkpoint stores one of them only."""
    return bool(getattr(config, "tie_word_embeddings", False))


def _source(name: str, tied: bool, stored: CheckpointTensors | Mapping[str, str]) -> str:
    """The tensor of the checkpoint that a parameter is read from."""
    other = {HEAD: EMBED, EMBED: HEAD}.get(name, name)
    return other if tied and name not in stored and other in stored else name


def _needed(model: Any, layers: LayerRange, shares: bool, embeds: bool) -> Iterator[str]:
    """Parameters of the range. If head and embedding share one tensor, a stage that has both reads it once."""
    for name, _ in model.named_parameters(remove_duplicate=False):
        parts = name.split(".")
        if parts[:2] == ["model", "layers"]:
            if layers.first <= int(parts[2]) < layers.last:
                yield name
        elif name == EMBED:
            if embeds:
                yield name
        elif name == HEAD:
            if layers.is_last and not (shares and embeds):
                yield name
        elif layers.is_last:  # the final norm
            yield name
