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
from engine.model.gguf.folder import SOURCE, refers_to_gguf
from engine.model.meta_model import empty_model
from engine.model.quantization import INT8, check_quantization, stored_quantization
from engine.model.quantized import SCALES, is_quantized, put_int8
from engine.model.ranges import LayerRange
from engine.model.resolve import revision_of
from engine.model.scaled import DTYPES, put_scaled, scale_of
from engine.model.shard import ModelShard
from engine.model.spec import ModelSpec, read_spec
from engine.model.weights.meter import Meter
from engine.model.weights.tensors import SINGLE, CheckpointTensors, check_format, files_of_tensors

EMBED = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


def load_spec(path: Path) -> ModelSpec:
    """Architecture and EOS ids (the generation config's, which ``generate`` obeys, before the model config's).

    Raises:
        UnsupportedModelError: the architecture, or the checkpoint's format, is not supported. The format of a hub's
            snapshot shows when its weights are read.
    """
    config = load_config(path)
    eos: tuple[int, ...] | None = None
    if (path / "generation_config.json").exists():
        found = GenerationConfig.from_pretrained(path).eos_token_id
        eos = None if found is None else (found,) if isinstance(found, int) else tuple(found)
    if not revision_of(path):  # a snapshot of the hub has what was asked for
        check_format(path)
    return read_spec(config, eos)


def load_config(path: Path) -> Any:
    """The checkpoint's Hugging Face config.

    Raises:
        UnsupportedModelError: there is none, or none that transformers knows.
    """
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError) as error:  # no or no valid config.json, or a type that transformers does not know
        raise UnsupportedModelError(f"{path} holds no config of a supported model: {error}") from error


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
    wanted_as = check_quantization(quantization, config, device)
    is_made = wanted_as is not None and (wanted_as.name == INT8 or stored_quantization(config) is None)
    model = empty_model(config, dtype)
    tied = bool(getattr(config, "tie_word_embeddings", False))
    embeds = embeds or layers.is_first
    wanted = list(_wanted(model, layers, tied, embeds))
    matrices = {name for name in wanted if wanted_as is not None and is_quantized(model, name)}
    with closing(CheckpointTensors(path, device)) as tensors:
        for name in wanted:
            source = _source(name, tied, tensors)
            shape = model.get_parameter(name).shape
            as_what = wanted_as if name in matrices else None
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
        model.lm_head.weight = model.model.embed_tokens.weight
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
    tied = bool(getattr(config, "tie_word_embeddings", False))
    reads_embedding = embeds or layers.is_first
    names = {_source(name, tied, files) for name in _wanted(empty_model(config), layers, tied, reads_embedding)}
    missing = sorted(names - files.keys())
    if missing:
        raise UnsupportedModelError(f"{path} cannot be loaded: its index lacks the tensor {missing[0]!r}")
    scales = {name.removesuffix("weight") + SCALES for name in names} | {scale_of(name) for name in names}
    return {files[name] for name in names | (scales & files.keys())}


def _source(name: str, tied: bool, stored: CheckpointTensors | Mapping[str, str]) -> str:
    """The tensor of the checkpoint that a parameter is read from."""
    return EMBED if name == HEAD and tied and name not in stored else name


def _wanted(model: Any, layers: LayerRange, tied: bool, embeds: bool) -> Iterator[str]:
    """Parameters of the range; a tied head is read once, through the embedding, when one stage has both."""
    for name, _ in model.named_parameters(remove_duplicate=False):
        parts = name.split(".")
        if parts[:2] == ["model", "layers"]:
            if layers.first <= int(parts[2]) < layers.last:
                yield name
        elif name == EMBED:
            if embeds:
                yield name
        elif name == HEAD:
            if layers.is_last and not (tied and embeds):
                yield name
        elif layers.is_last:  # the final norm
            yield name
