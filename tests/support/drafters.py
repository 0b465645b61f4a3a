"""Tiny random drafters in every public layout, written by hand: names and fields as those layouts have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.model.spec import ModelSpec
from tests.support.drafter_tensors import (
    BLOCK,
    DRAFTED,
    FFN,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    MASK,
    RANK,
    TARGET,
    Maker,
    Public,
)


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
    maker.ends(fc=(width, 2 * width))
    if method == "parallelspec-eagle":
        maker.add("mask_state", width)
    else:
        maker.add("norm.weight", width)
        maker.add("layers.0.input_norm.weight", width)
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
