"""Tiny random drafters in every public layout, with the tensor names and config fields of those layouts."""

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
WIDTH, VOCAB = 32, 97
TARGET = ModelSpec(
    family="llama", n_layers=12, n_heads=4, n_kv_heads=2, head_dim=8, hidden_size=WIDTH, vocab_size=VOCAB,
    max_positions=512, layer_types=("full_attention",) * 12, eos_ids=(2,), dtype="float32", logit_softcap=None,
)  # fmt: skip


@dataclass
class Public:
    """A checkpoint as it is published; equal names and shapes have equal random tensors."""

    config: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    file: str = "model.safetensors"

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        if self.file.endswith(".safetensors"):
            save_file({name: tensor.contiguous() for name, tensor in self.tensors.items()}, folder / self.file)
        else:
            torch.save(self.tensors, folder / self.file)
        return folder

    def add(self, **shapes: tuple[int, ...]) -> None:
        """Tensors; ``__`` in a name is a dot."""
        for key, shape in shapes.items():
            name = key.replace("__", ".")
            generator = torch.Generator().manual_seed(zlib.crc32(f"{name}{shape}".encode()))
            self.tensors[name] = ("norm" in name) + 0.2 * torch.randn(shape, generator=generator)

    def add_weights(self, **shapes: tuple[int, ...]) -> None:
        self.add(**{f"{name}.weight": shape for name, shape in shapes.items()})

    def add_layer(
        self, prefix: str, norms: tuple[str, ...], read: int = 1, bias: bool = False, qk: bool = False
    ) -> None:
        """One layer; its queries, keys and values read ``read`` states side by side."""
        sizes = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
        for part, rows in sizes.items():
            self.add_weights(**{f"{prefix}self_attn.{part}_proj": (rows, read * WIDTH)})
            if bias:
                self.add(**{f"{prefix}self_attn.{part}_proj.bias": (rows,)})
        self.add_weights(**{f"{prefix}self_attn.o_proj": (WIDTH, HEADS * HEAD_DIM)})
        self.add_weights(**{f"{prefix}mlp.{part}_proj": (FFN, WIDTH) for part in ("gate", "up")})
        self.add_weights(**{f"{prefix}mlp.down_proj": (WIDTH, FFN)})
        self.add_weights(**{f"{prefix}{norm}": (WIDTH,) for norm in (*norms, "post_attention_layernorm")})
        self.add_weights(**{f"{prefix}self_attn.{part}_norm": (HEAD_DIM,) for part in ("qk" if qk else "")})

    def add_vocabulary(self) -> None:
        """Tables of a small vocabulary: every eighth token."""
        ids = torch.arange(DRAFTED) * 8 + 1
        self.tensors["d2t"] = ids - torch.arange(DRAFTED)
        self.tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)


def layers(n_layers: int = 1, **more: Any) -> dict[str, Any]:
    """Config fields of the layers."""
    return {
        "model_type": "llama", "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": FFN,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "num_hidden_layers": n_layers,
        "head_dim": HEAD_DIM, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "max_position_embeddings": 256, **more,
    }  # fmt: skip


def eagle1() -> Public:
    """SafeAILab's: a pickle, and a config without a field for EAGLE."""
    config = {"architectures": ["LlamaForCausalLM"], "bias": True, **layers()}
    public = Public(config, file="pytorch_model.bin")
    public.add_weights(embed_tokens=(VOCAB, WIDTH), fc=(WIDTH, 2 * WIDTH))
    public.add(fc__bias=(WIDTH,))
    public.add_layer("layers.0.", ())
    return public


def eagle3() -> Public:
    """SafeAILab's: a pickle, the embedding is the target's, and no field names the taps."""
    public = _eagle3()
    public.file = "pytorch_model.bin"
    return public


def eagle31() -> Public:
    """SpecForge's with every flag of EAGLE-3.1 and its own embedding."""
    public = _eagle3(fc_norm=True, norm_output=True, target_hidden_size=WIDTH)
    public.add_weights(embed_tokens=(VOCAB, WIDTH), **{f"fc_norm.{tap}": (WIDTH,) for tap in range(3)})
    return public


def nvidia_eagle3() -> Public:
    """ModelOpt's: with an object ``eagle_config``; the last tap is the last layer's output."""
    inner = {"eagle_aux_hidden_state_layer_ids": [3, 6, 12], "use_aux_hidden_state": True, "use_last_layernorm": True}
    public = _eagle3(eagle_config=inner, norm_before_fc=True)
    public.add_weights(input_norm=(3 * WIDTH,))
    return public


def deepspec_eagle3() -> Public:
    """DeepSpec's: ids of outputs, norms of heads, the whole vocabulary."""
    named = {"architectures": ["Qwen3Eagle3Model"], "target_layer_ids": [-1, 4, 9], "ttt_length": 7}
    public = Public({**layers(), **named})
    public.add_weights(embed_tokens=(VOCAB, WIDTH), lm_head=(VOCAB, WIDTH), fc=(WIDTH, 3 * WIDTH), norm=(WIDTH,))
    public.add_layer("layers.0.", ("input_layernorm", "hidden_norm"), read=2, qk=True)
    return public


def vllm_peagle() -> Public:
    """P-EAGLE with EAGLE-3's names, as vLLM first read it."""
    public = _eagle3(ptd_token_id=MASK)
    public.add(mask_hidden=(1, 1, 3 * WIDTH))
    return public


def speculators_eagle3() -> Public:
    return _speculators_eagle3("eagle3", eagle_aux_hidden_state_layer_ids=[2, 5, 8], norm_before_residual=True)


def peagle() -> Public:
    """Of speculators: two layers, of which the first is EAGLE-3's."""
    public = _speculators_eagle3("peagle", 2, eagle_aux_hidden_state_layer_ids=[2, 6, 9], mask_token_id=MASK)
    public.add_layer("layers.1.", ("input_layernorm",))
    public.add(mask_hidden=(1, 1, 3 * WIDTH))
    return public


def speculators_dflash() -> Public:
    more = {"aux_hidden_state_layer_ids": [2, 6, 10], "mask_token_id": MASK, "block_size": BLOCK}
    public = _dflash(_speculators("dflash", 2, **more))
    public.add_vocabulary()
    public.add_weights(embed_tokens=(VOCAB, WIDTH), lm_head=(DRAFTED, WIDTH))
    return public


def speculators_dspark() -> Public:
    """With a gated Markov head, whose second matrix is of the small vocabulary."""
    public = speculators_dflash()
    _add_markov(public, DRAFTED)
    public.add(markov_head__gate_proj__weight=(RANK, WIDTH + RANK), markov_head__gate_proj__bias=(RANK,))
    heads = {"markov_rank": RANK, "markov_head_type": "gated", "confidence_head_with_markov": True}
    public.config |= {"speculators_model_type": "dspark", **heads}
    return public


def dflash(**inner: Any) -> Public:
    """z-lab's: neither embedding nor head."""
    inner = {"target_layer_ids": [1, 5, 9], "mask_token_id": MASK, **inner}
    named = {"block_size": BLOCK, "num_target_layers": 12, "dflash_config": inner, "model_type": "qwen3"}
    return _dflash({**layers(2, layer_types=["full_attention"] * 2), **named})


def jetspec() -> Public:
    return dflash(causal_head=True)


def specforge_dspark() -> Public:
    """DSpark's heads in DFlash's layout, with confidence of the state alone."""
    public = dflash(
        projector_type="dspark", markov_rank=RANK, markov_head_type="vanilla", enable_confidence_head=True,
        confidence_head_with_markov=False,
    )  # fmt: skip
    _add_markov(public, VOCAB, confidence=WIDTH)
    return public


def deepspec() -> Public:
    """DeepSpec's DSpark: fields at the top, copies of the target's embedding and head."""
    heads = {"markov_rank": RANK, "markov_head_type": "rnn", "confidence_head_with_markov": True}
    named = {"target_layer_ids": [-1, 5, 9], "mask_token_id": MASK, "block_size": BLOCK, "num_anchors": 512}
    public = _dflash({**layers(2), "model_type": "qwen3", **named, **heads})
    public.add_weights(embed_tokens=(VOCAB, WIDTH), lm_head=(VOCAB, WIDTH))
    _add_markov(public, VOCAB)
    joint = {"markov_head__joint_proj__weight": (3 * RANK, 2 * RANK + WIDTH), "markov_head__joint_proj__bias": (9,)}
    public.add(**joint)
    return public


def medusa() -> Public:
    """Five heads, and a config that names two."""
    config = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}
    public = Public(config, file="medusa_lm_head.pt")
    for head in range(5):
        public.add_weights(**{f"{head}.0.linear": (WIDTH, WIDTH), f"{head}.1": (VOCAB, WIDTH)})
        public.add(**{f"{head}.0.linear.bias": (WIDTH,)})
    return public


def _parallelspec(method: str) -> Public:
    """In our own layout: normalised names."""
    described = {
        "method": method, "generation": 1, "target_hidden_size": WIDTH, "vocab_size": VOCAB, "draft_vocab_size": VOCAB,
        "taps": [], "n_drafts": 5, "has_mask_state": method == "parallelspec-eagle",
        "layers": {
            "n_layers": 1, "hidden_size": WIDTH, "ffn_size": FFN, "n_heads": HEADS, "n_kv_heads": KV_HEADS,
            "head_dim": HEAD_DIM, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
        },
    }  # fmt: skip
    public = Public({"spectra_drafter": described})
    public.add_layer("layers.0.", ())
    for name in [*public.tensors]:
        own = name.replace("self_attn.", "").replace("mlp.", "").replace("_proj", "")
        public.tensors[own.replace("post_attention_layernorm", "ffn_norm")] = public.tensors.pop(name)
    public.add(mask_embeddings=(4, WIDTH), fc__weight=(WIDTH, 2 * WIDTH))
    if method == "parallelspec-eagle":
        public.add(mask_state=(WIDTH,))
    else:
        public.add(norm__weight=(WIDTH,), layers__0__input_norm__weight=(WIDTH,))
    return public


def parallelspec_medusa() -> Public:
    return _parallelspec("parallelspec-medusa")


def parallelspec_eagle() -> Public:
    return _parallelspec("parallelspec-eagle")


LAYOUTS: dict[str, Callable[[], Public]] = {
    make.__name__: make
    for make in (
        eagle1, eagle3, eagle31, nvidia_eagle3, deepspec_eagle3, vllm_peagle, speculators_eagle3, peagle,
        speculators_dflash, speculators_dspark, dflash, jetspec, specforge_dspark, deepspec, medusa,
        parallelspec_medusa, parallelspec_eagle,
    )
}  # fmt: skip


def _eagle3(first: str = "midlayer.", **config: Any) -> Public:
    named = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": DRAFTED, **layers()}
    public = Public({**named, **config})
    public.add_weights(fc=(WIDTH, 3 * WIDTH), norm=(WIDTH,), lm_head=(DRAFTED, WIDTH))
    public.add_layer(first, ("input_layernorm", "hidden_norm"), read=2)
    public.add_vocabulary()
    return public


def _dflash(config: dict[str, Any]) -> Public:
    public = Public(config)
    public.add_weights(fc=(WIDTH, 3 * WIDTH), norm=(WIDTH,), hidden_norm=(WIDTH,))
    for layer in range(2):
        public.add_layer(f"layers.{layer}.", ("input_layernorm",), qk=True)
    return public


def _add_markov(public: Public, n_drafted: int, confidence: int = WIDTH + RANK) -> None:
    public.add_weights(**{"markov_head.markov_w1": (VOCAB, RANK), "markov_head.markov_w2": (n_drafted, RANK)})
    public.add(confidence_head__proj__weight=(1, confidence), confidence_head__proj__bias=(1,))


def _speculators_eagle3(kind: str, n_layers: int = 1, **more: Any) -> Public:
    public = Public(_speculators(kind, n_layers, **more), _eagle3("layers.0.").tensors)
    public.add_weights(embed_tokens=(VOCAB, WIDTH))
    return public


def _speculators(kind: str, n_layers: int = 1, **more: Any) -> dict[str, Any]:
    inner = {
        "algorithm": kind,
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}],
        "default_proposal_method": "greedy",
        "verifier": {"name_or_path": "meta-llama/Llama-3.1-8B-Instruct", "architectures": ["LlamaForCausalLM"]},
    }
    fields = {"transformer_layer_config": layers(n_layers), "draft_vocab_size": DRAFTED}
    return {"speculators_model_type": kind, "speculators_config": inner, **fields, **more}
