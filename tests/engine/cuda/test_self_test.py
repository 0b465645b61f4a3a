"""The self-test passes right kernels and notices wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Gemma3TextConfig, LlamaConfig, Qwen3MoeConfig

from engine import device
from engine.cuda import layer, products, self_test
from engine.cuda.kernels.gemm import choose_tile
from engine.cuda.operands import Matrix, Norm
from engine.model.build import random_model
from engine.model.matrices import groups

pytestmark = pytest.mark.cluster

CPU = torch.device("cpu")

SIZES: dict[str, Any] = {
    "vocab_size": 41,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 128,
}


@pytest.fixture(autouse=True)
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 8 and 20 rows, which products take 16 and 32 at once, and splits of 16 positions."""
    monkeypatch.setattr(self_test, "ROW_TILES", (8, 20))
    monkeypatch.setattr(self_test, "ROWS", 20)
    monkeypatch.setattr(self_test, "SPLIT", 16)


@cache
def model(family: str, activation: str = "silu") -> Any:
    """Of one layer."""
    if family == "llama":
        return random_model(LlamaConfig(**SIZES, hidden_act=activation), torch.float32, torch.device("cpu"), None)
    if family == "qwen3_moe":
        few = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16}
        return random_model(Qwen3MoeConfig(**SIZES, **few), torch.float32, CPU, None)
    config = Gemma3TextConfig(**SIZES, sliding_window=12, layer_types=["sliding_attention"])
    return random_model(config, torch.float32, torch.device("cpu"), None)


def verdict(*families: str, is_exact: bool = True) -> self_test.Verdict:
    return self_test.self_test([model(family) for family in families], is_exact)


def wrap(patch: pytest.MonkeyPatch, module: Any, name: str, change: Callable[..., None]) -> None:
    """After the function, ``change`` is called with its arguments."""
    original = getattr(module, name)

    def changed(*given: Any, **options: Any) -> None:
        original(*given, **options)
        change(*given, **options)

    patch.setattr(module, name, changed)


@pytest.mark.parametrize("family", ["gemma3", "qwen3_moe"])
def test_right_kernels_pass(family: str) -> None:
    found = verdict(family)
    assert (found.kernel_fault, found.order_fault, found.row_tile) == ("", "", None)


def test_right_products_of_groups_pass_and_wrong_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "is_host", lambda _: False)  # a CPU would dequantise
    awq = {"quant_method": "awq", "bits": 4, "group_size": 32}
    config = LlamaConfig(**SIZES | {"hidden_size": 48}, quantization_config=awq)
    quantised = random_model(config, torch.float32, CPU, None)
    found = self_test.self_test([quantised], is_exact=True)
    assert (found.kernel_fault, found.order_fault) == ("", "")
    monkeypatch.setattr(groups, "CENTRE", 7)  # of the modules; kernels have their own
    assert "a layer differs from the oracle" in self_test.self_test([quantised], is_exact=True).kernel_fault


def test_a_missing_kernel_is_named() -> None:
    found = self_test.self_test([model("llama", "relu")], is_exact=False)
    assert found.kernel_fault.startswith("the activation 'relu' has no kernel")


def shift(partials: Any, plan: Any, layout: Any, heads: Any, kv_heads: Any, out: Tensor, **_: Any) -> None:
    out.copy_(out.roll(1, 0))


def drop_last_split(
    q: Any, keys: Any, values: Any, plan: Any, layout: Any, heads: Any, some: Any, into: Any, *_: Any, **__: Any
) -> None:
    into.sums[2::3] = 0


def nan(partials: Any, plan: Any, layout: Any, heads: Any, kv_heads: Any, out: Tensor, **_: Any) -> None:
    out[0, 0] = float("nan")


@pytest.mark.parametrize(("name", "change"), [("combine", shift), ("attend", drop_last_split), ("combine", nan)])
def test_wrong_attention_is_noticed(name: str, change: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    wrap(monkeypatch, layer, name, change)
    assert verdict("llama", is_exact=False).kernel_fault.startswith("attention differs from the oracle by")


def wrong(x: Tensor, matrix: Matrix, out: Tensor, **_: Any) -> None:
    out[:, 0] *= 1.01


def by_rows(x: Tensor, matrix: Matrix, out: Tensor, **_: Any) -> None:
    out += len(x) * 1e-8


def by_tile(x: Tensor, matrix: Matrix, out: Tensor, *, row_tile: int | None, **_: Any) -> None:
    out += (row_tile or choose_tile(len(x), x.dtype, matrix.weight.dtype).rows) * 1e-8


def large_tiles_fail(x: Tensor, matrix: Matrix, out: Tensor, *, row_tile: int | None, **_: Any) -> None:
    if row_tile is None and len(x) > 16:
        raise RuntimeError("out of resource: shared memory")


def all_tiles_fail(*_: Any, **__: Any) -> None:
    raise RuntimeError("out of resource: shared memory")


@pytest.mark.parametrize(
    ("change", "fault", "row_tile"),
    [
        (wrong, "a layer differs from the oracle by", None),
        (by_rows, "rows have other bits in steps of 8 rows than in a step of 20", None),
        (by_tile, "", 64),
        (large_tiles_fail, "", 64),
        (all_tiles_fail, "RuntimeError: out of resource: shared memory", None),
    ],
)
def test_products_that_exact_cannot_use_are_noticed(
    change: Callable[..., None], fault: str, row_tile: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrap(monkeypatch, products, "multiply", change)
    found = verdict("llama")
    assert (found.kernel_fault, found.row_tile) == ("", row_tile)
    assert found.order_fault.startswith(fault)
    assert bool(found.order_fault) is bool(fault)


def test_a_layer_that_depends_on_its_neighbours_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a norm: the library's products are right, so that ``fast`` can run."""

    def change(hidden: Tensor, norm: Norm, out: Tensor, **_: Any) -> None:
        out += 1e-7 * hidden.sum()

    wrap(monkeypatch, layer, "rms_norm", change)
    found = verdict("llama")
    assert found.kernel_fault == ""
    assert found.order_fault.startswith("rows have other bits")
