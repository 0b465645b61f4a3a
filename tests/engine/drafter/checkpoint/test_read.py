"""Every public layout is read: description, taps, draft ids, and each tensor under its normalised name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.drafter.checkpoint.read import read_drafter
from engine.drafter.networks.base import TargetParts
from engine.drafter.networks.build import load_network
from engine.drafter.spec import LayerShape
from engine.errors import ConfigError
from tests.engine.drafter.checkpoint.drafters import DRAFTED, FFN, LAYOUTS, MASK, RANK, TARGET, eagle1, eagle31

SMALL = {"draft_vocab_size": DRAFTED}
EXPECTED: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle1": ("EAGLE", {"method": "eagle", "generation": 1, "taps": (), "own_embedding": True, "fc_bias": True}),
    "eagle3": ("EAGLE-3", {"method": "eagle", "generation": 3, "taps": (1, 5, 8), "own_head": True, **SMALL}),
    "eagle31": (
        "EAGLE-3",
        {"taps": (1, 5, 8), "fc_norm": True, "norm_output": True, "own_embedding": True, **SMALL},
    ),
    "nvidia_eagle3": ("EAGLE-3", {"taps": (2, 5, 11), "norm_before_fc": True, "norm_output": False, **SMALL}),
    "deepspec_eagle3": ("DeepSpec EAGLE-3", {"taps": (-1, 4, 9), "draft_vocab_size": 97, "own_embedding": True}),
    "vllm_peagle": ("P-EAGLE", {"method": "p-eagle", "taps": (1, 5, 8), "mask_token_id": MASK, "has_mask_state": True}),
    "speculators_eagle3": (
        "speculators eagle3",
        {"method": "eagle", "generation": 3, "taps": (1, 4, 7), "norm_before_residual": True, **SMALL},
    ),
    "peagle": (
        "speculators peagle",
        {"method": "p-eagle", "taps": (1, 5, 8), "mask_token_id": MASK, "has_mask_state": True, "n_drafts": 7},
    ),
    "speculators_dflash": (
        "speculators dflash",
        {"method": "dflash", "taps": (1, 5, 9), "n_drafts": 5, "sample_from_anchor": False, "own_head": True, **SMALL},
    ),
    "speculators_dspark": (
        "speculators dspark",
        {
            "n_drafts": 6, "sample_from_anchor": True, "markov_rank": RANK, "markov_head": "gated",
            "has_confidence": True, "confidence_with_markov": True,
        },
    ),
    "dflash": ("DFlash", {"taps": (1, 5, 9), "n_drafts": 5, "mask_token_id": MASK, "own_head": False}),
    "jetspec": ("DFlash", {"causal_block": True, "n_drafts": 5}),
    "specforge_dspark": (
        "DFlash",
        {"n_drafts": 5, "markov_rank": RANK, "has_confidence": True, "confidence_with_markov": False},
    ),
    "deepspec": (
        "DeepSpec",
        {"taps": (-1, 5, 9), "n_drafts": 6, "sample_from_anchor": True, "markov_head": "rnn", "own_embedding": True},
    ),
    "medusa": ("Medusa", {"method": "medusa", "n_heads": 5, "n_head_layers": 1, "n_drafts": 5, "layers": None}),
    "parallelspec_medusa": ("spectra", {"method": "parallelspec-medusa", "n_drafts": 5, "has_mask_state": False}),
    "parallelspec_eagle": ("spectra", {"method": "parallelspec-eagle", "n_drafts": 5, "has_mask_state": True}),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_read_as_its_network(layout: str, tmp_path: Path) -> None:
    public = LAYOUTS[layout]()
    read = read_drafter(public.save(tmp_path), TARGET)
    name, fields = EXPECTED[layout]
    assert read.layout == name
    assert {field: getattr(read.spec, field) for field in fields} == fields
    assert (read.spec.vocab_size, read.spec.target_hidden_size) == (97, 32)
    stored = [tensor for given, tensor in public.tensors.items() if given not in ("d2t", "t2d")]
    kept = sorted(tensor.flatten().tolist() for tensor in read.tensors.values())
    assert kept == sorted(tensor.flatten().tolist() for tensor in stored), "each once, none changed"
    network = load_network(read.spec, read.tensors, TargetParts(torch.nn.Identity(), torch.nn.Identity()))
    found = dict(network.named_parameters())
    assert found.keys() == read.tensors.keys()
    assert all(torch.equal(weight, read.tensors[name]) for name, weight in found.items())
    if read.spec.draft_vocab_size == TARGET.vocab_size:
        assert read.draft_ids is None
    else:
        assert read.draft_ids is not None
        assert read.draft_ids.dtype == torch.int64
        assert read.draft_ids.tolist() == list(range(1, 8 * DRAFTED, 8))


NAMES = {  # in a layout: normalised names and public ones
    "peagle": {
        "embed.weight": "embed_tokens.weight",
        "head.weight": "lm_head.weight",
        "norm.weight": "norm.weight",
        "fc.weight": "fc.weight",
        "layers.0.embed_norm.weight": "layers.0.input_layernorm.weight",
        "layers.0.hidden_norm.weight": "layers.0.hidden_norm.weight",
        "layers.0.ffn_norm.weight": "layers.0.post_attention_layernorm.weight",
        "layers.0.q.weight": "layers.0.self_attn.q_proj.weight",
        "layers.0.k.weight": "layers.0.self_attn.k_proj.weight",
        "layers.0.v.weight": "layers.0.self_attn.v_proj.weight",
        "layers.0.gate.weight": "layers.0.mlp.gate_proj.weight",
        "layers.0.up.weight": "layers.0.mlp.up_proj.weight",
        "layers.0.down.weight": "layers.0.mlp.down_proj.weight",
        "layers.1.input_norm.weight": "layers.1.input_layernorm.weight",
        "layers.1.o.weight": "layers.1.self_attn.o_proj.weight",
    },
    "deepspec": {
        "markov.w1": "markov_head.markov_w1.weight",
        "markov.w2": "markov_head.markov_w2.weight",
        "markov.joint.bias": "markov_head.joint_proj.bias",
        "confidence.weight": "confidence_head.proj.weight",
        "hidden_norm.weight": "hidden_norm.weight",
        "layers.0.input_norm.weight": "layers.0.input_layernorm.weight",
        "layers.1.q_norm.weight": "layers.1.self_attn.q_norm.weight",
        "layers.1.k_norm.weight": "layers.1.self_attn.k_norm.weight",
    },
    "medusa": {"heads.3.blocks.0.bias": "3.0.linear.bias", "heads.4.out.weight": "4.1.weight"},
    "eagle31": {
        "layers.0.embed_norm.weight": "midlayer.input_layernorm.weight",
        "fc_norms.2.weight": "fc_norm.2.weight",
    },
}


@pytest.mark.parametrize("layout", NAMES)
def test_tensor_names_are_normalised(layout: str, tmp_path: Path) -> None:
    public = LAYOUTS[layout]()
    read = read_drafter(public.save(tmp_path), TARGET)
    for normalised, name in NAMES[layout].items():
        assert torch.equal(read.tensors[normalised], public.tensors[name]), name
    if layout == "peagle":
        assert torch.equal(read.tensors["mask_state"], public.tensors["mask_hidden"].flatten())
    if layout == "eagle31":
        assert read.spec.layers == LayerShape(1, 32, FFN, 4, 2, 8, 500000.0, 1e-5)


def test_a_prefix_and_copies_of_the_target_are_left_out_and_biases_found(tmp_path: Path) -> None:
    public = eagle31()
    public.tensors = {f"model.{name}": tensor for name, tensor in public.tensors.items()}
    public.tensors["verifier_lm_head.weight"] = torch.zeros(DRAFTED, 32)
    public.tensors["midlayer.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    plain = read_drafter(eagle31().save(tmp_path / "plain"), TARGET)
    read = read_drafter(public.save(tmp_path / "prefixed"), TARGET)
    assert read.tensors.keys() == plain.tensors.keys()
    assert torch.equal(read.draft_ids, plain.draft_ids)  # type: ignore[arg-type]
    biased = eagle1()
    biased.add_layer("layers.0.", (), bias=True)
    read = read_drafter(biased.save(tmp_path / "biased"), TARGET)
    assert read.spec.layers is not None
    assert read.spec.layers.attention_bias
    assert read.tensors["layers.0.k.bias"].shape == (16,)


@pytest.mark.parametrize(
    ("fields", "theta", "scaling"),
    [
        ({}, 500000.0, {}),
        ({"rope_theta": None}, 10000.0, {}),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 500000.0, {"rope_type": "linear", "factor": 2}),
        ({"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}, 7.0, {}),
        ({"rope_parameters": {"full_attention": {"rope_theta": 9.0}, "sliding_attention": {}}}, 9.0, {}),
    ],
)
def test_rope_fields_of_all_versions_are_read(
    fields: dict[str, Any], theta: float, scaling: dict[str, Any], tmp_path: Path
) -> None:
    public = eagle1()
    public.config |= fields
    layers = read_drafter(public.save(tmp_path), TARGET).spec.layers
    assert layers is not None
    assert layers.rope_theta == theta
    assert dict(layers.rope_scaling) == (scaling and scaling | {"original_max_position_embeddings": 256})


def test_a_window_makes_blocks_causal_unless_the_config_says_otherwise(tmp_path: Path) -> None:
    public = LAYOUTS["speculators_dflash"]()
    inner = public.config["transformer_layer_config"]
    inner |= {"layer_types": ["sliding_attention"] * 2, "sliding_window": 64}
    spec = read_drafter(public.save(tmp_path / "causal"), TARGET).spec
    assert spec.layers is not None
    assert (spec.layers.window, spec.causal_block) == (64, True)
    public.config["sliding_window_non_causal"] = True
    assert not read_drafter(public.save(tmp_path / "both"), TARGET).spec.causal_block


@pytest.mark.parametrize("name", ["mask_token_id", "pard_token", "ptd_token_id"])
def test_all_names_of_the_mask_token_are_read(name: str, tmp_path: Path) -> None:
    public = LAYOUTS["vllm_peagle"]()
    del public.config["ptd_token_id"]
    public.config[name] = 9
    assert read_drafter(public.save(tmp_path), TARGET).spec.mask_token_id == 9


def test_taps_may_be_overridden(tmp_path: Path) -> None:
    folder = eagle31().save(tmp_path)
    assert read_drafter(folder, TARGET, (0, 3, 11)).spec.taps == (0, 3, 11)
    with pytest.raises(ConfigError, match="reads 3 states of width 32"):
        read_drafter(folder, TARGET, (0, 3))
    with pytest.raises(ConfigError, match="the target has no layer -2, its layers are 0 to 11"):
        read_drafter(folder, TARGET, (-2, 0, 1))
    with pytest.raises(
        ConfigError, match=r"drafter_options: layers is \[1\], but a drafter of method medusa reads no layer"
    ):
        read_drafter(LAYOUTS["medusa"]().save(tmp_path / "medusa"), TARGET, (1,))


def test_a_narrow_drafter_needs_its_own_embedding_and_head(tmp_path: Path) -> None:
    public = eagle31()
    public.config["target_hidden_size"] = 48
    public.tensors["fc.weight"] = torch.zeros(32, 3 * 48)
    for tap in range(3):
        public.tensors[f"fc_norm.{tap}.weight"] = torch.ones(48)
    wide = replace(TARGET, hidden_size=48)
    assert read_drafter(public.save(tmp_path), wide).spec.target_hidden_size == 48
    del public.tensors["embed_tokens.weight"]
    with pytest.raises(ConfigError, match="width 32 and no embedding of its own; the target's has width 48"):
        read_drafter(public.save(tmp_path), wide)


# A field counts only in the layouts that have it, and only where it belongs.
PLACES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("eagle1", {"eagle_config": {"use_aux_hidden_state": False}}, {"taps": ()}),
    ("eagle1", {"draft_vocab_size": 16, "norm_before_fc": True}, {"draft_vocab_size": 97, "norm_before_fc": False}),
    ("eagle3", {"eagle_aux_hidden_state_layer_ids": [2, 4, 6], "eagle_config": {}}, {"taps": (1, 3, 5)}),
    (
        "eagle3",
        {
            "eagle_aux_hidden_state_layer_ids": [2, 4, 6],
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": []},
        },
        {"taps": (1, 3, 5)},
    ),
    ("dflash", {"sample_from_anchor": True, "norm_before_fc": True}, {"sample_from_anchor": False, "n_drafts": 5}),
    ("deepspec", {"shift_label": False}, {"sample_from_anchor": True}),
    ("speculators_eagle3", {"target_layer_ids": []}, {"taps": (1, 4, 7)}),
    ("speculators_eagle3", {"eagle_config": {"use_aux_hidden_state": False}}, {"taps": (1, 4, 7)}),
    ("speculators_dflash", {"dflash_config": {"shift_label": True}}, {"sample_from_anchor": False, "n_drafts": 5}),
]


@pytest.mark.parametrize(("layout", "fields", "expected"), PLACES)
def test_a_field_counts_where_its_layout_has_it(
    layout: str, fields: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    public = LAYOUTS[layout]()
    public.config |= fields
    spec = read_drafter(public.save(tmp_path), TARGET).spec
    assert {name: getattr(spec, name) for name in expected} == expected


def test_layers_of_speculators_and_block_sizes_of_dflash_have_one_place(tmp_path: Path) -> None:
    public = LAYOUTS["speculators_eagle3"]()
    public.config |= {"sliding_window": 8, "layer_types": ["sliding_attention"], "rms_norm_eps": 0.5}
    public.config["transformer_layer_config"]["draft_vocab_size"] = 3
    spec = read_drafter(public.save(tmp_path / "speculators"), TARGET).spec
    assert spec.layers is not None
    assert (spec.layers.window, spec.draft_vocab_size) == (None, DRAFTED)
    assert spec.layers.rms_norm_eps < 0.5
    public = LAYOUTS["dflash"]()
    public.config["block_size"] = 8
    public.config["dflash_config"]["block_size"] = 4
    assert read_drafter(public.save(tmp_path / "dflash"), TARGET).spec.n_drafts == 7
