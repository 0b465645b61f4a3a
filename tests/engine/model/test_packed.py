"""Packed linear layers: equal to ``nn.Linear`` for any rows, and in place of every linear layer that a CPU runs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from engine.model.matrices.linears import PackedLinear, pack_linears
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from engine.target_model.whole_texts import WholeTexts
from tests.support.engines import complete_all, make_engine
from tests.support.tiny_models import FAMILIES, random_prompts, reference_tokens, saved_model, tiny_model

SHAPES = [(0, 40), (1, 40), (2, 40), (3, 40), (1, 65, 40), (3, 1, 40), (40,)]


@torch.inference_mode()
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_packed_layer_gives_the_products_of_a_plain_one(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(1)
    plain = nn.Linear(40, 56, bias=bias)
    hidden = torch.randn(shape)
    torch.testing.assert_close(PackedLinear(plain)(hidden), plain(hidden), rtol=1e-5, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])  # own, tied and soft-capped head
def test_a_head_over_some_tokens_gives_their_logits(family: str, is_packed: bool) -> None:
    path, ids = saved_model(family), torch.tensor([2, 40, 41, 96])
    shard = WholeTexts.load(path, [torch.device("cpu")], torch.float32, 16).shards[-1]
    weight = shard.head_module.weight
    if is_packed:
        shard.pack_linears()
        assert shard.head_module.unpacked().equal(weight)
    assert shard.head_rows(ids).equal(weight[ids])
    normed = torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(shard.head_over(ids)(normed), shard.head(normed)[..., ids])
    shard._head = nn.Sequential(shard.head_module)  # has no rows to copy
    torch.testing.assert_close(shard.head_over(ids)(normed), shard.head(normed)[..., ids])


def linears(modules: Any) -> set[type]:
    """Classes of all linear layers in modules."""
    return {type(one) for module in modules for one in module.modules() if "Linear" in type(one).__name__}


@pytest.mark.parametrize(("dtype", "kind"), [(None, PackedLinear), ("bfloat16", nn.Linear)])
def test_a_target_packs_every_fp32_matrix_and_no_other(dtype: str | None, kind: type) -> None:
    path = saved_model("llama")
    target = LocalTarget.load(TargetOptions(str(path), stages=2, dtype=dtype), path)
    shards = [stage._shard for stage in target._stages]
    assert linears([*shards[0].layers, *shards[1].layers, shards[1].head_module]) == {kind}


def test_a_module_stays_plain_where_the_operators_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert linears([pack_linears(copy.deepcopy(tiny_model("qwen2")))]) == {nn.Linear}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_target_writes_hugging_faces_texts_with_and_without_drafts(family: str) -> None:
    path, texts = saved_model(family), random_prompts(3)
    options = TargetOptions(str(path), kv_bytes=1 << 20, block_size=16)
    jobs = [
        Request(text, SamplingParams(max_tokens=12, stop_ids=(2,)), method)
        for method in ("autoregressive", "pld")
        for text in texts
    ]
    done = complete_all(make_engine(LocalTarget.load(options, path)), jobs)
    assert [one.token_ids for one in done] == 2 * [reference_tokens(family, tuple(text), 12) for text in texts]
