"""Drafters are as published, in the sizes of the target, unless flags change them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from app.training.new_drafter import ArchitectureOptions, check_options, new_drafter, new_spec
from engine.drafter.checkpoint.read import read_drafter
from engine.drafter.checkpoint.tensors import DrafterCheckpoint
from engine.drafter.checkpoint.write import write_drafter
from engine.drafter.networks.medusa import Medusa
from engine.drafter.spec import DrafterSpec, Method
from engine.errors import ConfigError
from engine.model.loader import load_spec
from engine.target_model.whole_texts import WholeTexts
from tests.support.tiny_models import FAMILIES, VOCAB, saved_model, tiny_model


def spec_of(
    method: Method, family: str = "llama", unused: int | None = 0, n_layers: int = 4, **asked: Any
) -> DrafterSpec:
    check_options(method, ArchitectureOptions(**asked))
    path = saved_model(family)
    return new_spec(method, ArchitectureOptions(**asked), path, replace(load_spec(path), n_layers=n_layers), unused)


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_are_shaped_like_those_of_the_target(family: str) -> None:
    shape = spec_of("parallelspec-eagle", family).layers
    config = tiny_model(family).config
    assert shape is not None
    assert (shape.n_layers, shape.hidden_size, shape.ffn_size) == (1, 32, 48)
    assert (shape.n_heads, shape.n_kv_heads) == (4, config.num_key_value_heads)
    assert shape.head_dim == getattr(config, "head_dim", None) or 8
    assert (shape.rms_norm_eps, shape.window) == (config.rms_norm_eps, None)


@pytest.mark.parametrize(
    ("method", "asked", "expected"),
    [
        ("medusa", {}, {"n_heads": 5, "n_head_layers": 1, "own_head": True}),
        ("medusa", {"draft_vocab": 40}, {"draft_vocab_size": 40, "own_head": False}),
        ("medusa", {"draft_vocab": 40, "own_head": True}, {"draft_vocab_size": 40, "own_head": True}),
        ("eagle", {}, {"generation": 3, "taps": (0, 1)}),  # of four layers: 1, 1 and 0
        ("eagle", {"n_layers": 32}, {"taps": (1, 15, 28)}),
        ("dflash", {"n_layers": 32}, {"taps": (1, 8, 15, 22, 29)}),
        ("eagle", {"generation": 1}, {"taps": ()}),
        ("eagle", {"taps": (3, -1), "draft_vocab": 40}, {"taps": (3, -1), "draft_vocab_size": 40, "own_head": False}),
        ("eagle", {"draft_vocab": 40, "own_head": True}, {"draft_vocab_size": 40, "own_head": True}),
        ("parallelspec-eagle", {}, {"n_drafts": 5, "has_mask_state": True, "reads_states": True}),
        ("parallelspec-eagle", {"mask_state": "zero"}, {"has_mask_state": False}),
        ("parallelspec-medusa", {}, {"n_drafts": 5, "has_mask_state": True, "reads_states": True}),
        ("parallelspec-medusa", {"no_states": True}, {"reads_states": False, "has_mask_state": False}),
        ("p-eagle", {}, {"mask_token_id": 7, "has_mask_state": True}),
        ("dflash", {}, {"n_drafts": 15, "causal_block": False}),
        ("dflash", {"causal_block": True, "drafts": 3}, {"causal_block": True}),
        (
            "dflash",
            {"sample_from_anchor": True, "markov_rank": 4, "markov_head": "rnn", "confidence": True, "mask_token": 9},
            {
                "n_drafts": 7,
                "markov_rank": 4,
                "markov_head": "rnn",
                "mask_token_id": 9,
                "has_confidence": True,
                "confidence_with_markov": True,
            },
        ),
    ],
)
def test_a_drafter_is_as_published_unless_flags_change_it(
    method: Method, asked: dict[str, Any], expected: dict[str, Any]
) -> None:
    spec = spec_of(method, unused=7, **asked)
    assert {name: getattr(spec, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("method", "asked", "says"),
    [
        ("medusa", {"taps": (1,)}, "--taps does not apply to --method medusa; it is for eagle, p-eagle, dflash"),
        ("eagle", {"drafts": 4}, "--drafts does not apply to --method eagle"),
        ("p-eagle", {"causal_block": True}, "--causal-block does not apply to --method p-eagle"),
        ("parallelspec-eagle", {"drafts": 1}, "--drafts is 1; it must be at least 2"),
        ("dflash", {"layers": 0}, "--layers is 0; it must be at least 1"),
        ("dflash", {"markov_head": "rnn"}, "which needs --markov-rank"),
        ("eagle", {"generation": 1, "taps": (1,)}, "for --generation 3"),
        ("eagle", {"generation": 1, "own_head": True}, "for --generation 3"),
        ("eagle", {"layers": 2}, "--layers is 2; EAGLE 3 has 1 layer"),
        ("eagle", {"taps": (1, 4)}, "--taps is 1,4; layers of this target are 0 to 3, each once"),
        ("eagle", {"taps": (1, 1)}, "--taps is 1,1"),
        ("eagle", {"draft_vocab": VOCAB + 1}, f"--draft-vocab is {VOCAB + 1}; the target has {VOCAB} tokens"),
        ("p-eagle", {"unused": None}, "--mask-token is None"),
        ("dflash", {"mask_token": VOCAB}, f"--mask-token is {VOCAB}; it must be an id below {VOCAB}"),
    ],
)
def test_a_shape_that_cannot_be_trained_is_refused(method: Method, asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        spec_of(method, **asked)


@pytest.mark.parametrize(
    ("method", "asked"),
    [
        ("medusa", {"drafts": 3, "layers": 2}),
        ("eagle", {"generation": 1, "layers": 2}),
        ("medusa", {"draft_vocab": 30}),
        ("eagle", {"draft_vocab": 30, "taps": (-1, 2)}),
        ("eagle", {"draft_vocab": 30, "own_head": True}),
        ("parallelspec-medusa", {"no_states": True, "layers": 2}),
        ("p-eagle", {"draft_vocab": 30, "layers": 2}),
        ("dflash", {"causal_block": True, "draft_vocab": 30, "drafts": 4}),
        ("dflash", {"sample_from_anchor": True, "markov_rank": 4, "markov_head": "gated", "confidence": True}),
    ],
)
def test_every_shape_can_be_exported_and_read(method: Method, asked: dict[str, Any], tmp_path: Path) -> None:
    path = saved_model("llama")
    spec, target = spec_of(method, **asked), load_spec(path)
    ids = torch.arange(2, 32) if "draft_vocab" in asked else None
    model = WholeTexts.load(path, [torch.device("cpu")], torch.float32, 16)
    tensors = new_drafter(spec, model, ids, 0).state_dict()
    write_drafter(tmp_path, DrafterCheckpoint(spec, tensors, ids, "trained"), target)
    found = read_drafter(tmp_path, target)
    assert found.spec == spec
    assert (found.draft_ids is None) == (ids is None)
    assert all(found.tensors[name].equal(weight) for name, weight in tensors.items())


def test_heads_start_as_copies_of_the_head_of_the_target() -> None:
    model = WholeTexts.load(saved_model("qwen3"), [torch.device("cpu")], torch.float32, 16)
    head = tiny_model("qwen3").lm_head.weight
    ids = torch.tensor([4, 9, 11])
    own = new_drafter(spec_of("eagle", "qwen3", draft_vocab=3, own_head=True), model, ids, 0)
    assert own.head.weight.equal(head[ids])
    medusa = new_drafter(spec_of("medusa", "qwen3", drafts=2), model, None, 0)
    assert isinstance(medusa, Medusa)
    states = torch.randn(5, 32)
    torch.testing.assert_close(medusa(states), (states @ head.T)[:, None].expand(-1, 2, -1))


@pytest.mark.parametrize("method", ["eagle", "parallelspec-eagle", "parallelspec-medusa"])
def test_new_weights_depend_on_the_seed_and_weigh_embeddings_like_states(method: Method) -> None:
    model = WholeTexts.load(saved_model("llama"), [torch.device("cpu")], torch.float32, 64)
    before = torch.random.get_rng_state()
    spec = spec_of(method, **({"generation": 1} if method == "eagle" else {}))
    one, same, other = (new_drafter(spec, model, None, seed).state_dict() for seed in (0, 0, 1))
    assert torch.random.get_rng_state().equal(before)
    assert all(weight.equal(same[name]) for name, weight in one.items())
    fc = one["fc.weight"]
    assert not fc.equal(other["fc.weight"])
    hidden, _ = model.states(torch.randint(0, VOCAB, (4, 64), generator=torch.Generator().manual_seed(0)))
    states = model.shards[-1].norm(hidden)
    of_tokens, of_states = model.embed(torch.arange(VOCAB)) @ fc[:, :32].T, states @ fc[:, 32:].T
    assert float(of_tokens.std() / of_states.std()) == pytest.approx(1, rel=0.3)
    if "mask_embeddings" in one:
        size = tiny_model("llama").model.embed_tokens.weight.detach().std()
        assert one["mask_embeddings"].std() == pytest.approx(float(size), rel=0.3)
