"""Tiny random drafters in every public layout, written by hand: names and fields as those layouts have them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.model.spec import ModelSpec

FFN = 40
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
DRAFTED = 11  # ids of the small vocabularies
MASK = 5
BLOCK = 6
RANK = 3
TARGET = ModelSpec(
    family="llama", n_layers=12, n_heads=4, n_kv_heads=2, head_dim=8, hidden_size=32, vocab_size=97, max_positions=512,
    layer_types=("full_attention",) * 12, eos_ids=(2,), dtype="float32", logit_softcap=None,
)  # fmt: skip


@dataclass
class Public:
    """A checkpoint as it is published."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    file: str = "model.safetensors"

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        if self.file.endswith(".safetensors"):
            save_file({name: tensor.contiguous() for name, tensor in self.tensors.items()}, folder / self.file)
        else:
            torch.save(self.tensors, folder / self.file)
        return folder


@dataclass
class Maker:
    """Random tensors for a target, the same ones for the same names and shapes."""

    target: ModelSpec
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, *shape: int) -> None:
        generator = torch.Generator().manual_seed(zlib.crc32(f"{name}{shape}".encode()))
        centre = 1.0 if "norm" in name else 0.0
        self.tensors[name] = centre + 0.2 * torch.randn(shape, generator=generator)

    def ends(self, **shapes: tuple[int, ...]) -> None:
        for name, shape in shapes.items():
            self.add(f"{name}.weight", *shape)

    def layer(self, prefix: str, norms: tuple[str, ...], read: int = 1, bias: bool = False, qk: bool = False) -> None:
        """One layer; ``read``: how many times the width its queries, keys and values read."""
        hidden, queries, keys = self.target.hidden_size, HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        for part, rows in (("q", queries), ("k", keys), ("v", keys)):
            self.add(f"{prefix}self_attn.{part}_proj.weight", rows, read * hidden)
            if bias:
                self.add(f"{prefix}self_attn.{part}_proj.bias", rows)
        self.add(f"{prefix}self_attn.o_proj.weight", hidden, queries)
        self.add(f"{prefix}mlp.gate_proj.weight", FFN, hidden)
        self.add(f"{prefix}mlp.up_proj.weight", FFN, hidden)
        self.add(f"{prefix}mlp.down_proj.weight", hidden, FFN)
        for norm in (*norms, "post_attention_layernorm"):
            self.add(f"{prefix}{norm}.weight", hidden)
        for part in "qk" if qk else "":
            self.add(f"{prefix}self_attn.{part}_norm.weight", HEAD_DIM)

    def vocabulary(self) -> None:
        """Tables of a small vocabulary: every eighth token."""
        ids = torch.arange(DRAFTED) * 8 + 1
        self.tensors["d2t"] = ids - torch.arange(DRAFTED)
        self.tensors["t2d"] = torch.zeros(self.target.vocab_size, dtype=torch.bool).index_fill(0, ids, True)

    def layers(self, n_layers: int = 1, **more: Any) -> dict[str, Any]:
        """Fields of the layers."""
        return {
            "model_type": "llama",
            "vocab_size": self.target.vocab_size,
            "hidden_size": self.target.hidden_size,
            "intermediate_size": FFN,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "num_hidden_layers": n_layers,
            "head_dim": HEAD_DIM,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "max_position_embeddings": 256,
            **more,
        }


def eagle1(target: ModelSpec = TARGET) -> Public:
    """As SafeAILab publishes it: a pickle, and a config that says nothing of EAGLE."""
    maker, width = Maker(target), target.hidden_size
    maker.ends(embed_tokens=(target.vocab_size, width), fc=(width, 2 * width))
    maker.add("fc.bias", width)
    maker.layer("layers.0.", ())
    config = {"architectures": ["LlamaForCausalLM"], "bias": True, **maker.layers()}
    return Public(config, maker.tensors, "pytorch_model.bin")


def eagle3(target: ModelSpec = TARGET) -> Public:
    """As SafeAILab publishes it: the embedding is the target's, and the taps are nowhere named."""
    maker = _eagle3(target, "midlayer.")
    maker.vocabulary()
    return Public(_eagle3_config(maker), maker.tensors, "pytorch_model.bin")


def eagle31(target: ModelSpec = TARGET) -> Public:
    """As SpecForge writes it with every flag of EAGLE-3.1, and with an embedding of its own."""
    maker = _eagle3(target, "midlayer.")
    maker.vocabulary()
    maker.ends(embed_tokens=(target.vocab_size, target.hidden_size))
    for tap in range(3):
        maker.add(f"fc_norm.{tap}.weight", target.hidden_size)
    flags = {"fc_norm": True, "norm_output": True, "target_hidden_size": target.hidden_size}
    return Public({**_eagle3_config(maker), **flags}, maker.tensors)


def nvidia_eagle3(target: ModelSpec = TARGET) -> Public:
    """As ModelOpt exports it: with an object ``eagle_config``, the last tap being the last layer's output."""
    maker = _eagle3(target, "midlayer.")
    maker.vocabulary()
    maker.add("input_norm.weight", 3 * target.hidden_size)
    inner = {
        "eagle_aux_hidden_state_layer_ids": [3, 6, target.n_layers],
        "use_aux_hidden_state": True,
        "use_last_layernorm": True,
    }
    return Public({**_eagle3_config(maker), "eagle_config": inner, "norm_before_fc": True}, maker.tensors)


def deepspec_eagle3(target: ModelSpec = TARGET) -> Public:
    """As DeepSpec writes it: ids of outputs, norms of heads, the whole vocabulary."""
    maker = Maker(target)
    width = target.hidden_size
    whole = (target.vocab_size, width)
    maker.ends(embed_tokens=whole, lm_head=whole, fc=(width, 3 * width), norm=(width,))
    maker.layer("layers.0.", ("input_layernorm", "hidden_norm"), read=2, qk=True)
    named = {"architectures": ["Qwen3Eagle3Model"], "target_layer_ids": [-1, 4, 9], "ttt_length": 7}
    return Public({**maker.layers(), **named}, maker.tensors)


def vllm_peagle(target: ModelSpec = TARGET) -> Public:
    """P-EAGLE with EAGLE-3's names, as vLLM first took it."""
    maker = _eagle3(target, "midlayer.")
    maker.vocabulary()
    maker.add("mask_hidden", 1, 1, 3 * target.hidden_size)
    return Public({**_eagle3_config(maker), "ptd_token_id": MASK}, maker.tensors)


def speculators_eagle3(target: ModelSpec = TARGET) -> Public:
    maker = _eagle3(target, "layers.0.")
    maker.vocabulary()
    maker.ends(embed_tokens=(target.vocab_size, target.hidden_size))
    config = _speculators(maker, "eagle3", eagle_aux_hidden_state_layer_ids=[2, 5, 8], norm_before_residual=True)
    return Public(config, maker.tensors)


def peagle(target: ModelSpec = TARGET) -> Public:
    """Of speculators: two layers, of which the first is EAGLE-3's."""
    maker = _eagle3(target, "layers.0.")
    maker.vocabulary()
    maker.layer("layers.1.", ("input_layernorm",))
    maker.ends(embed_tokens=(target.vocab_size, target.hidden_size))
    maker.add("mask_hidden", 1, 1, 3 * target.hidden_size)
    ids = [2, 6, 9]
    config = _speculators(maker, "peagle", 2, eagle_aux_hidden_state_layer_ids=ids, mask_token_id=MASK)
    return Public(config, maker.tensors)


def speculators_dflash(target: ModelSpec = TARGET) -> Public:
    maker = _dflash(target)
    maker.vocabulary()
    whole = (target.vocab_size, target.hidden_size)
    maker.ends(embed_tokens=whole, lm_head=(DRAFTED, target.hidden_size))
    more = {"aux_hidden_state_layer_ids": [2, 6, 10], "mask_token_id": MASK, "block_size": BLOCK}
    return Public(_speculators(maker, "dflash", 2, **more), maker.tensors)


def speculators_dspark(target: ModelSpec = TARGET) -> Public:
    """With a gated Markov head, whose second matrix is of the small vocabulary."""
    public = speculators_dflash(target)
    maker = Maker(target, public.tensors)
    _markov(maker, DRAFTED)
    maker.add("markov_head.gate_proj.weight", RANK, target.hidden_size + RANK)
    maker.add("markov_head.gate_proj.bias", RANK)
    heads = {"markov_rank": RANK, "markov_head_type": "gated", "confidence_head_with_markov": True}
    return Public({**public.config, "speculators_model_type": "dspark", **heads}, maker.tensors)


def dflash(target: ModelSpec = TARGET) -> Public:
    """As z-lab publishes it: neither embedding nor head."""
    maker = _dflash(target)
    inner = {"target_layer_ids": [1, 5, 9], "mask_token_id": MASK}
    return Public(_dflash_config(maker, inner), maker.tensors)


def jetspec(target: ModelSpec = TARGET) -> Public:
    public = dflash(target)
    return Public(
        {**public.config, "dflash_config": {**public.config["dflash_config"], "causal_head": True}}, public.tensors
    )


def specforge_dspark(target: ModelSpec = TARGET) -> Public:
    """DSpark's heads in DFlash's layout, with confidence of the state alone."""
    maker = _dflash(target)
    _markov(maker, target.vocab_size, confidence=target.hidden_size)
    inner = {
        "target_layer_ids": [1, 5, 9],
        "mask_token_id": MASK,
        "projector_type": "dspark",
        "markov_rank": RANK,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": False,
    }
    return Public(_dflash_config(maker, inner), maker.tensors)


def deepspec(target: ModelSpec = TARGET) -> Public:
    """DSpark as DeepSpec writes it: fields at the top, copies of the target's embedding and head."""
    maker = _dflash(target)
    whole = (target.vocab_size, target.hidden_size)
    maker.ends(embed_tokens=whole, lm_head=whole)
    _markov(maker, target.vocab_size)
    maker.add("markov_head.joint_proj.weight", 3 * RANK, 2 * RANK + target.hidden_size)
    maker.add("markov_head.joint_proj.bias", 3 * RANK)
    heads = {"markov_rank": RANK, "markov_head_type": "rnn", "confidence_head_with_markov": True}
    named = {"target_layer_ids": [-1, 5, 9], "mask_token_id": MASK, "block_size": BLOCK, "num_anchors": 512}
    return Public({**maker.layers(2), "model_type": "qwen3", **named, **heads}, maker.tensors)


def medusa(target: ModelSpec = TARGET) -> Public:
    """Five heads, and a config that says two."""
    maker, width = Maker(target), target.hidden_size
    for head in range(5):
        maker.add(f"{head}.0.linear.weight", width, width)
        maker.add(f"{head}.0.linear.bias", width)
        maker.add(f"{head}.1.weight", target.vocab_size, width)
    config = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}
    return Public(config, maker.tensors, "medusa_lm_head.pt")


def parallelspec(method: str, target: ModelSpec = TARGET) -> Public:
    """In our own layout: normalised names."""
    maker, width = Maker(target), target.hidden_size
    maker.layer("layers.0.", ())
    renamed = {
        name.replace("self_attn.", "").replace("mlp.", "").replace("_proj", "")
        .replace("post_attention_layernorm", "ffn_norm"): tensor
        for name, tensor in maker.tensors.items()
    }  # fmt: skip
    maker = Maker(target, renamed)
    maker.add("mask_embeddings", 4, width)
    if method == "parallelspec-eagle":
        maker.ends(fc=(width, 2 * width))
        maker.add("mask_state", width)
    layers = {
        "n_layers": 1, "hidden_size": width, "ffn_size": FFN, "n_heads": HEADS, "n_kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    described = {
        "method": method, "generation": 1, "target_hidden_size": width, "vocab_size": target.vocab_size,
        "draft_vocab_size": target.vocab_size, "taps": [], "layers": layers, "n_drafts": 5,
        "has_mask_state": method == "parallelspec-eagle",
    }  # fmt: skip
    return Public({"spectra_drafter": described}, maker.tensors)


def parallelspec_medusa(target: ModelSpec = TARGET) -> Public:
    return parallelspec("parallelspec-medusa", target)


def parallelspec_eagle(target: ModelSpec = TARGET) -> Public:
    return parallelspec("parallelspec-eagle", target)


LAYOUTS: dict[str, Callable[[ModelSpec], Public]] = {
    maker.__name__: maker
    for maker in (
        eagle1, eagle3, eagle31, nvidia_eagle3, deepspec_eagle3, vllm_peagle, speculators_eagle3, peagle,
        speculators_dflash, speculators_dspark, dflash, jetspec, specforge_dspark, deepspec, medusa,
        parallelspec_medusa, parallelspec_eagle,
    )
}  # fmt: skip


def _eagle3(target: ModelSpec, first: str) -> Maker:
    maker, width = Maker(target), target.hidden_size
    maker.ends(fc=(width, 3 * width), norm=(width,), lm_head=(DRAFTED, width))
    maker.layer(first, ("input_layernorm", "hidden_norm"), read=2)
    return maker


def _eagle3_config(maker: Maker) -> dict[str, Any]:
    return {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": DRAFTED, **maker.layers()}


def _dflash(target: ModelSpec) -> Maker:
    maker, width = Maker(target), target.hidden_size
    maker.ends(fc=(width, 3 * width), norm=(width,), hidden_norm=(width,))
    for layer in range(2):
        maker.layer(f"layers.{layer}.", ("input_layernorm",), qk=True)
    return maker


def _dflash_config(maker: Maker, inner: dict[str, Any]) -> dict[str, Any]:
    named = {"block_size": BLOCK, "num_target_layers": maker.target.n_layers, "dflash_config": inner}
    return {**maker.layers(2, layer_types=["full_attention"] * 2), "model_type": "qwen3", **named}


def _markov(maker: Maker, n_drafted: int, confidence: int | None = None) -> None:
    maker.add("markov_head.markov_w1.weight", maker.target.vocab_size, RANK)
    maker.add("markov_head.markov_w2.weight", n_drafted, RANK)
    maker.add("confidence_head.proj.weight", 1, confidence or maker.target.hidden_size + RANK)
    maker.add("confidence_head.proj.bias", 1)


def _speculators(maker: Maker, kind: str, n_layers: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "speculators_model_type": kind,
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": "meta-llama/Llama-3.1-8B-Instruct", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": maker.layers(n_layers),
        "draft_vocab_size": DRAFTED,
        **more,
    }
