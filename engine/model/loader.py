"""Loads a range of layers from a checkpoint; a stage never reads another stage's tensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from accelerate.utils import set_module_tensor_to_device
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from engine.errors import ConfigError, UnsupportedModelError
from engine.model.shard import LayerRange, ModelShard
from engine.model.spec import ModelSpec, read_spec

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
EMBED = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


def resolve(model: str) -> Path:
    """A local directory as it is; anything else is a hub id, downloaded (or taken from the hub's cache).

    Raises:
        ConfigError: there is neither such a directory nor such a repository.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    try:
        return Path(snapshot_download(model, allow_patterns=["*.json", "*.safetensors", "*.jinja", "tokenizer*"]))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigError(
            f"model {model!r} is neither a directory nor a repository that could be fetched: {error}"
        ) from error


def load_spec(path: Path) -> ModelSpec:
    """Architecture and EOS ids (the generation config's, which ``generate`` obeys, before the model config's).

    Raises:
        UnsupportedModelError: the architecture, or the checkpoint's format, is not supported.
    """
    config = _config(path)
    eos: tuple[int, ...] | None = None
    if (path / "generation_config.json").exists():
        found = GenerationConfig.from_pretrained(path).eos_token_id
        eos = None if found is None else (found,) if isinstance(found, int) else tuple(found)
    if not (path / SINGLE).exists() and not (path / INDEX).exists():
        raise UnsupportedModelError(f"{path} has neither {SINGLE} nor {INDEX}: only safetensors checkpoints are read")
    return read_spec(config, eos)


def _config(path: Path) -> Any:
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError) as error:  # no or no valid config.json, or a type that transformers does not know
        raise UnsupportedModelError(f"{path} holds no config of a supported model: {error}") from error


def load_shard(
    path: Path, layers: LayerRange, *, dtype: torch.dtype, device: torch.device, n_positions: int
) -> ModelShard:
    """Build the model without memory, then fill in only what the range needs.

    Raises:
        UnsupportedModelError: the model is not supported, or a tensor the range needs is not in the checkpoint.
    """
    spec = load_spec(path)
    config = _config(path)
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    tied = bool(getattr(config, "tie_word_embeddings", False))
    files = _files(path)
    for name in _wanted(model, layers, tied):
        source = name if name in files else EMBED if name == HEAD and tied else None
        if source is None or source not in files:
            raise UnsupportedModelError(f"{path} lacks the tensor {name!r}")
        if not files[source].exists():
            raise UnsupportedModelError(f"{path} lacks the file {files[source].name!r}, which holds {source!r}")
        with safe_open(files[source], framework="pt") as file:
            set_module_tensor_to_device(model, name, device, value=file.get_tensor(source), dtype=dtype)
    if tied and layers.is_first and layers.is_last:
        model.lm_head.weight = model.model.embed_tokens.weight
    for buffer_owner in (model.model.rotary_emb, model.model.embed_tokens):
        for name, buffer in buffer_owner.named_buffers(recurse=False):
            buffer_owner._buffers[name] = buffer.to(device)
    return ModelShard(model, spec, layers, n_positions)


def _files(path: Path) -> dict[str, Path]:
    """Tensor name -> file that holds it."""
    index = path / INDEX
    if index.exists():
        weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
        return {name: path / file for name, file in weight_map.items()}
    with safe_open(path / SINGLE, framework="pt") as file:
        return dict.fromkeys(file.keys(), path / SINGLE)


def _wanted(model: Any, layers: LayerRange, tied: bool) -> Iterator[str]:
    """Parameters of the range; a tied head is read once, through the embedding, when one stage has both."""
    for name, _ in model.named_parameters(remove_duplicate=False):
        parts = name.split(".")
        if parts[:2] == ["model", "layers"]:
            if layers.first <= int(parts[2]) < layers.last:
                yield name
        elif name == EMBED:
            if layers.is_first:
                yield name
        elif name == HEAD:
            if layers.is_last and not (tied and layers.is_first):
                yield name
        elif layers.is_last:  # the final norm
            yield name
