"""Names and shapes of a family's tensors: Hugging Face's and those of GGUF files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.model.gguf.header import GgufHeader, TensorInfo
from engine.model.gguf.settings import Metadata

IGNORED = {"rope_freqs.weight"}  # which the config holds
_MATRICES = {
    "attn_q": ("self_attn.q_proj", "queries", "hidden"),
    "attn_k": ("self_attn.k_proj", "keys", "hidden"),
    "attn_v": ("self_attn.v_proj", "keys", "hidden"),
    "attn_output": ("self_attn.o_proj", "hidden", "queries"),
    "ffn_gate": ("mlp.gate_proj", "inner", "hidden"),
    "ffn_up": ("mlp.up_proj", "inner", "hidden"),
    "ffn_down": ("mlp.down_proj", "hidden", "inner"),
}
_NORMS = {
    "attn_norm": ("input_layernorm", "hidden"),
    "ffn_norm": ("post_attention_layernorm", "hidden"),
}
_HEAD_NORMS = {"attn_q_norm": ("self_attn.q_norm", "head"), "attn_k_norm": ("self_attn.k_norm", "head")}
_GEMMA_NORMS = {
    "post_attention_norm": ("post_attention_layernorm", "hidden"),
    "ffn_norm": ("pre_feedforward_layernorm", "hidden"),
    "post_ffw_norm": ("post_feedforward_layernorm", "hidden"),
}
_INTERLEAVED = ("llama", "mistral")  # files of these hold rows of queries and keys in the order of rotary pairs


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """How a file holds a tensor of a model."""

    info: TensorInfo
    interleaved: int = 0  # rows of a head whose two halves alternate in the file; 0: they do not
    added: float = 0.0  # what the file's values exceed the model's by


def stored_tensors(header: GgufHeader, config: dict[str, Any]) -> dict[str, StoredTensor]:
    """Every tensor of the model that ``config`` describes, by Hugging Face's name.

    Raises:
        UnsupportedModelError: the file lacks one, has it in another shape, or has one that the model lacks.
    """
    data, found = Metadata(header), {}
    unknown = set(header.tensors) - IGNORED
    gemma = config["model_type"] == "gemma3_text"
    for ours, name, shape in _expected(config, header):
        if name not in header.tensors:
            raise data.refusal(f"it lacks the tensor {name!r}")
        info = header.tensors[name]
        if info.shape != shape:
            raise data.refusal(
                f"its tensor {name!r} has the shape {[*info.shape]}, but its metadata require {[*shape]}"
            )
        unknown.discard(name)
        rotary = config["model_type"] in _INTERLEAVED and (".attn_q." in name or ".attn_k." in name)
        is_shifted = gemma and name.endswith("norm.weight")
        found[ours] = StoredTensor(info, config["head_dim"] if rotary else 0, float(is_shifted))
    if unknown:
        raise data.refusal(f"it has the tensor {min(unknown)!r}, which a model of type {config['model_type']} lacks")
    return found


def _expected(config: dict[str, Any], header: GgufHeader) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Hugging Face's name, the file's, and the shape."""
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
    biased = _biased(config)
    norms = _norms(config["model_type"])
    for layer in range(config["num_hidden_layers"]):
        ours, file = f"model.layers.{layer}.", f"blk.{layer}."
        for name, (own, n_out, n_in) in _MATRICES.items():
            yield f"{ours}{own}.weight", f"{file}{name}.weight", (sizes[n_out], sizes[n_in])
            if name in biased:
                yield f"{ours}{own}.bias", f"{file}{name}.bias", (sizes[n_out],)
        for name, (own, size) in norms.items():
            yield f"{ours}{own}.weight", f"{file}{name}.weight", (sizes[size],)


def _biased(config: dict[str, Any]) -> set[str]:
    """Matrices with a bias."""
    if config["model_type"] == "qwen2":
        return {"attn_q", "attn_k", "attn_v"}
    attention = {name for name in _MATRICES if name.startswith("attn")} if config.get("attention_bias") else set()
    return attention | ({name for name in _MATRICES if name.startswith("ffn")} if config.get("mlp_bias") else set())


def _norms(model_type: str) -> dict[str, tuple[str, str]]:
    if model_type == "gemma3_text":
        return _NORMS | _HEAD_NORMS | _GEMMA_NORMS
    return _NORMS | _HEAD_NORMS if model_type == "qwen3" else _NORMS
