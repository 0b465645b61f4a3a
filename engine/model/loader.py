"""Loads a range of layers from a checkpoint; a stage never reads another stage's tensors."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import AutoConfig, GenerationConfig

from engine.errors import UnsupportedModelError
from engine.model.meta_model import empty_model
from engine.model.quantization import check_quantization
from engine.model.quantized import is_quantized, put_int8
from engine.model.ranges import LayerRange
from engine.model.shard import ModelShard
from engine.model.spec import ModelSpec, read_spec
from engine.model.tensors import INDEX, SINGLE, CheckpointTensors

EMBED = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
READERS = 4  # threads: one by itself waits for the disk, then copies, then waits again


def load_spec(path: Path) -> ModelSpec:
    """Architecture and EOS ids (the generation config's, which ``generate`` obeys, before the model config's).

    Raises:
        UnsupportedModelError: the architecture, or the checkpoint's format, is not supported.
    """
    config = load_config(path)
    eos: tuple[int, ...] | None = None
    if (path / "generation_config.json").exists():
        found = GenerationConfig.from_pretrained(path).eos_token_id
        eos = None if found is None else (found,) if isinstance(found, int) else tuple(found)
    if not (path / SINGLE).exists() and not (path / INDEX).exists():
        raise UnsupportedModelError(f"{path} has neither {SINGLE} nor {INDEX}: only safetensors checkpoints are read")
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
) -> ModelShard:
    """Build the model without memory, then fill in only what the range needs, tensor by tensor.

    Args:
        path: checkpoint directory.
        layers: the range; other layers' tensors are not read, and their files need not exist.
        dtype: of activations, and of all weights that are not int8.
        device: where weights go; int8 ones are quantised there, so that no more than one of them is there in full.
        n_positions: longest text the shard will see, tokens.
        quantization: "int8" for the decoder layers' matrices; a checkpoint that has int8 ones keeps them anyway.
        embeds: whether the shard embeds tokens though it is not the first.

    Raises:
        UnsupportedModelError: the model is not supported, or a tensor the range needs is not in the checkpoint, or has
            another shape there than the config says.
        ConfigError: ``quantization`` is unknown, or its package is not installed.
    """
    spec = load_spec(path)
    config = load_config(path)
    threshold = check_quantization(quantization, config)
    model = empty_model(config, dtype)
    tied = bool(getattr(config, "tie_word_embeddings", False))
    embeds = embeds or layers.is_first
    wanted = list(_wanted(model, layers, tied, embeds))
    matrices = {name for name in wanted if threshold is not None and is_quantized(model, name)}
    readers = 1 if matrices else READERS  # to quantise takes a whole matrix, and what the kernel needs besides
    with closing(CheckpointTensors(path, device)) as tensors, ThreadPoolExecutor(readers) as threads:

        def read(name: str) -> tuple[Tensor, Tensor | None]:
            source = EMBED if name == HEAD and tied and name not in tensors else name
            shape = model.get_parameter(name).shape
            return tensors.int8(source, shape) if name in matrices else (tensors.read(source, dtype, shape), None)

        about = f"layers {layers.first} to {layers.last - 1}"
        found = zip(wanted, threads.map(read, wanted), strict=True)
        for name, (weight, scales) in tqdm(found, about, len(wanted), leave=False, unit="tensor", disable=None):
            if threshold is not None and scales is not None:
                put_int8(model, name, weight, scales, threshold)
            else:
                owner, _, own = name.rpartition(".")
                setattr(model.get_submodule(owner), own, nn.Parameter(weight, requires_grad=False))
    if tied and embeds and layers.is_last:
        model.lm_head.weight = model.model.embed_tokens.weight
    for buffer_owner in (model.model.rotary_emb, model.model.embed_tokens):
        for name, buffer in buffer_owner.named_buffers(recurse=False):
            buffer_owner._buffers[name] = buffer.to(device)
    return ModelShard(model, spec, layers, n_positions, embeds)


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
