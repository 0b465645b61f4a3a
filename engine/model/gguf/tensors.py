"""Maps a model's tensors to those of a GGUF file, and dequantizes them to fp32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from engine.model.families import FAMILIES, Family
from engine.model.gguf.header import GgufHeader, TensorInfo
from engine.model.gguf.metadata import GgufMetadata

WEIGHTS_AT_ONCE = 1 << 20  # dequantized together
_IGNORED = {"rope_freqs.weight"}  # the config contains it
_MATRICES = {  # name in a file: module, size of outputs, size of inputs
    "attn_q": ("self_attn.q_proj", "queries", "hidden"),
    "attn_k": ("self_attn.k_proj", "keys", "hidden"),
    "attn_v": ("self_attn.v_proj", "keys", "hidden"),
    "attn_output": ("self_attn.o_proj", "hidden", "queries"),
    "ffn_gate": ("mlp.gate_proj", "inner", "hidden"),
    "ffn_up": ("mlp.up_proj", "inner", "hidden"),
    "ffn_down": ("mlp.down_proj", "hidden", "inner"),
}
_NORMS = {"attn_norm": ("input_layernorm", "hidden"), "ffn_norm": ("post_attention_layernorm", "hidden")}
_HEAD_NORMS = {"attn_q_norm": ("self_attn.q_norm", "head"), "attn_k_norm": ("self_attn.k_norm", "head")}
_OUTPUT_NORMS = {
    "post_attention_norm": ("post_attention_layernorm", "hidden"),
    "ffn_norm": ("pre_feedforward_layernorm", "hidden"),
    "post_ffw_norm": ("post_feedforward_layernorm", "hidden"),
}
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """How a file stores a tensor of a model."""

    info: TensorInfo
    interleaved: int = 0  # rows of a head if its two halves alternate in the file, else 0
    offset: float = 0.0  # the file's values exceed the model's by this

    @property
    def unit_bytes(self) -> int:
        """Bytes that can only be dequantized together: a row, a head with alternating halves, or a vector."""
        info = self.info
        return info.n_bytes if len(info.shape) == 1 else info.row_bytes * max(1, self.interleaved)

    def dequantize(self, raw: Array) -> Array:
        """Return the model's rows, flat fp32, of uint8 ``raw``: one or more units of ``unit_bytes``."""
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        info = self.info
        n_in = 1 if len(info.shape) == 1 and self.interleaved else info.shape[-1]
        row_bytes = info.n_bytes // (prod(info.shape) // n_in)
        values = dequantize(raw.reshape(-1, row_bytes), GGMLQuantizationType(info.type)).reshape(-1, n_in)
        if self.interleaved:
            values = values.reshape(-1, self.interleaved // 2, 2, n_in).swapaxes(1, 2)
        flat: Array = values.reshape(-1)
        return flat - np.float32(self.offset) if self.offset else flat

    def read(self, header: GgufHeader) -> Iterator[Array]:
        """Yield all rows, flat fp32, ``WEIGHTS_AT_ONCE`` at a time.

        Raises:
            OSError: the file cannot be read.
        """
        info, unit = self.info, self.unit_bytes
        step = unit * max(1, WEIGHTS_AT_ONCE * info.n_bytes // (prod(info.shape) * unit))
        for first in range(0, info.n_bytes, step):
            n_bytes = min(step, info.n_bytes - first)
            yield self.dequantize(np.fromfile(header.path, np.uint8, n_bytes, offset=info.first + first))


def map_tensors(header: GgufHeader, config: dict[str, Any]) -> dict[str, GgufTensor]:
    """Return every tensor of the model that ``config`` describes, by Hugging Face's name.

    Raises:
        UnsupportedModelError: the file lacks one, has it in another shape, or has one that the model lacks.
    """
    family = FAMILIES[config["model_type"]]
    data, found = GgufMetadata(header), {}
    unknown = set(header.tensors) - _IGNORED
    for model_name, name, shape in _expected(family, config):
        if name not in header.tensors:
            raise data.refusal(f"it lacks the tensor {name!r}")
        info = header.tensors[name]
        if info.shape != shape:
            raise data.refusal(
                f"its tensor {name!r} has the shape {[*info.shape]}, but its metadata require {[*shape]}"
            )
        unknown.discard(name)
        is_interleaved = family.gguf.interleaves_heads and (".attn_q." in name or ".attn_k." in name)
        offset = family.norm_offset if name.endswith("norm.weight") else 0.0
        found[model_name] = GgufTensor(info, config["head_dim"] if is_interleaved else 0, offset)
    if unknown:
        raise data.refusal(f"it has the tensor {min(unknown)!r}, which a model of type {config['model_type']} lacks")
    return found


def _expected(family: Family, config: dict[str, Any]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield each tensor's name in Hugging Face's model, its name in the file, and its shape."""
    hidden, head = config["hidden_size"], config["head_dim"]
    sizes = {
        "hidden": hidden,
        "head": head,
        "inner": config["intermediate_size"],
        "queries": config["num_attention_heads"] * head,
        "keys": config["num_key_value_heads"] * head,
    }
    yield "model.embed_tokens.weight", "token_embd.weight", (config["vocab_size"], hidden)
    yield "model.norm.weight", "output_norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", "output.weight", (config["vocab_size"], hidden)
    norms = _NORMS | (_HEAD_NORMS if family.has_head_norms else {}) | (_OUTPUT_NORMS if family.has_output_norms else {})
    for layer in range(config["num_hidden_layers"]):
        ours, file = f"model.layers.{layer}.", f"blk.{layer}."
        for name, (module, n_out, n_in) in _MATRICES.items():
            yield f"{ours}{module}.weight", f"{file}{name}.weight", (sizes[n_out], sizes[n_in])
            if _has_bias(family, config, module):
                yield f"{ours}{module}.bias", f"{file}{name}.bias", (sizes[n_out],)
        for name, (module, size) in norms.items():
            yield f"{ours}{module}.weight", f"{file}{name}.weight", (sizes[size],)


def _has_bias(family: Family, config: dict[str, Any], module: str) -> bool:
    part, name = module.split(".")
    option = "attention_bias" if part == "self_attn" else "mlp_bias"
    return name in family.biases or bool(config.get(option, False))
