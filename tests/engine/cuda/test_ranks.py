"""Outputs of a stage have the same bits for any number of ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from engine.cuda import graphs, weights
from engine.cuda.executor import Executor
from engine.cuda.products import Products
from engine.model.exchange import Ranks
from engine.model.matrices.experts import put_experts
from engine.model.matrices.layout import WeightLayout
from engine.model.matrices.linears import DTYPES, ScaledLinear, is_layer_matrix, quantize_rows
from engine.model.matrices.stored import quantize_as
from engine.model.ranges import LayerRange
from engine.model.shard import ModelShard
from engine.model.share import RankShare
from engine.model.spec import read_spec
from engine.step import Work
from engine.tree import TokenTree
from tests.engine.cuda.call_again import CallAgain, call_again
from tests.engine.cuda.small_targets import ShuffledPipeline
from tests.support.rank_models import rank_shard
from tests.support.thread_exchange import RankThreads, ThreadExchange

LAYERS, SPLIT, BUCKETS = LayerRange(0, 1, 1), 8, (2, 8, 12)
TEXTS = [[(5 * i + j * (i + 2)) % 38 + 3 for j in range(n)] for i, n in enumerate((11, 6))]
TREE = TokenTree([7, 8, 9, 10, 11], [-1, 0, -1, 2, 2])
Outputs = tuple[list[Tensor], list[Tensor]]  # hidden states and logits of all steps; only the leader has logits


@pytest.fixture(autouse=True)
def leaves_depend_on_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the small matrices different leaves, by sizes between those of a rank and of all ranks."""
    monkeypatch.setattr(weights, "choose_leaves", lambda n_out: 1 if n_out >= 90 else 2 if n_out >= 41 else 4)


@cache
def model(key_heads: int, dtype: str = "", family: str = "llama") -> Any:
    """A seeded model with 8 query heads, and biases if the family has them; ``dtype`` is that of its small weights."""
    sizes: dict[str, Any] = {
        "vocab_size": 41, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 8,
        "num_attention_heads": 8, "num_key_value_heads": key_heads, "max_position_embeddings": 128,
        "initializer_range": 0.3, "attention_bias": True, "tie_word_embeddings": False,
    }  # fmt: skip
    torch.manual_seed(9)
    if family == "qwen3_moe":
        sizes |= {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16}
        made: Any = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes))
        put_experts(made)
    elif family == "llama":
        made = LlamaForCausalLM(LlamaConfig(**sizes, mlp_bias=True))
    else:
        made = Gemma3ForCausalLM(Gemma3TextConfig(**sizes, sliding_window=9, final_logit_softcapping=30.0))
    made = made.float().eval()
    for name, parameter in list(made.named_parameters()):
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
        if dtype and is_layer_matrix(made, name):
            place = name.removesuffix(".weight")
            if dtype == "int4":
                stored = quantize_as(parameter.detach(), WeightLayout(4, group=32, zero="zeros"))
                made.set_submodule(place, stored.linear(made.get_submodule(place).bias))
                continue
            quantized = quantize_rows(parameter.detach(), DTYPES[dtype])
            made.set_submodule(place, ScaledLinear(*quantized, made.get_submodule(place).bias))
    return made


def multiply_part(executor: Executor, exchange: ThreadExchange, n: int) -> Tensor:
    """Multiply ``n`` rows of the leader by this rank's part of the head."""
    rows = torch.empty(n, 32)
    exchange.broadcast(rows)
    return exchange.collect(executor.head_part(rows))


def run_steps(pipeline: ShuffledPipeline, executor: Executor, exchange: ThreadExchange) -> Outputs:
    """A prompt in chunks with another one, a tree, and the row after an accepted path."""
    work, (one, other) = pipeline.work, TEXTS
    steps: list[Callable[[], list[Work]]] = [
        lambda: [work(0, 0, one[:5]), work(1, 0, other)],
        lambda: [work(0, 5, one[5:]), work(1, 6, [5])],
        lambda: [work(0, 11, [6], TREE)],
        lambda: [work(0, 14, [12], keep=[3, 5]), work(1, 7, [3], TREE)],
    ]
    hidden, logits = list[Tensor](), list[Tensor]()
    for step in steps:
        hidden.append(pipeline.run(step()).clone())
        if executor.answers is not None:
            logits.append(executor.logits(hidden[-1]))
        else:
            multiply_part(executor, exchange, len(hidden[-1]))
    return hidden, logits


def make_rank(
    exchange: ThreadExchange, size: int, whole: Any, products: Products | None = None, records: bool = False
) -> tuple[ModelShard, Executor]:
    spec = read_spec(whole.config)
    if size == 1:
        shard = ModelShard(copy.deepcopy(whole), spec, LAYERS, 128)
    else:
        shard = rank_shard(whole, Ranks(RankShare(exchange.rank, size), spec, exchange), LAYERS, 128)
    return shard, Executor(shard, products, SPLIT, BUCKETS, records=records)


def run_ranks(size: int, whole: Any, products: Products | None = None, by_rows: bool = False) -> list[Outputs]:
    """Outputs of every rank."""

    @torch.inference_mode()
    def run_rank(exchange: ThreadExchange) -> Outputs:
        shard, executor = make_rank(exchange, size, whole, products)
        return run_steps(ShuffledPipeline([shard], 3, executors=[executor]), executor, exchange)

    return RankThreads(size, by_rows).run(run_rank)


@cache
def alone(*case: Any) -> Outputs:
    return run_ranks(1, model(*case))[0]


def assert_same(found: list[Outputs], expected: Outputs) -> None:
    assert all(torch.equal(*pair) for pair in zip(found[0][1], expected[1], strict=True)), "logits of the leader"
    for hidden, logits in found:
        assert all(torch.equal(*pair) for pair in zip(hidden, expected[0], strict=True))
        assert logits is found[0][1] or not logits


CLUSTER, MATRIX = pytest.mark.cluster, pytest.mark.matrix


@pytest.mark.parametrize(("size", "by_rows", "case"), [
    pytest.param(4, False, (2,), marks=CLUSTER),  # key heads of two ranks
    pytest.param(2, True, (4, "int8"), marks=CLUSTER),
    pytest.param(4, False, (2, "int4"), marks=CLUSTER),  # ranks begin within a group
    pytest.param(2, True, (2, "", "qwen3_moe"), marks=CLUSTER),
    pytest.param(8, False, (2, "int4", "qwen3_moe"), marks=MATRIX),
    pytest.param(2, True, (2, "int8", "qwen3_moe"), marks=MATRIX),
    pytest.param(4, True, (2, "fp8"), marks=MATRIX),
    pytest.param(2, False, (4, "", "gemma3"), marks=MATRIX),
    pytest.param(8, True, (4, "int8"), marks=MATRIX),
])  # fmt: skip
def test_outputs_have_the_bits_of_one_rank(size: int, by_rows: bool, case: tuple[Any, ...]) -> None:
    assert_same(run_ranks(size, model(*case), by_rows=by_rows), alone(*case))


@pytest.mark.matrix
def test_products_of_a_library_differ_by_rounding_alone() -> None:
    for size in (2, 4):
        found = run_ranks(size, model(2), Products(by_library=True))
        for ours, exact in zip((*found[0][0], *found[0][1]), (*alone(2)[0], *alone(2)[1]), strict=True):
            assert torch.allclose(ours, exact, atol=1e-4)


@pytest.mark.cluster
def test_a_drafter_calls_the_shared_head_as_answers_do() -> None:
    rows = torch.randn(3, 32)

    @torch.inference_mode()
    def call_head(exchange: ThreadExchange) -> Tensor:
        shard, executor = make_rank(exchange, 2, model(2, "", "gemma3"))
        if exchange.rank:
            return multiply_part(executor, exchange, len(rows))
        return shard.head(rows)

    whole = model(2, "", "gemma3")
    expected = 30 * torch.tanh(whole.lm_head(rows) / 30)
    assert torch.allclose(RankThreads(2).run(call_head)[0], expected, atol=1e-5)


@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's: a warm-up computes with memory that has no values yet
def test_recorded_steps_and_answers_are_those_of_one_rank_also_after_a_new_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call_again(monkeypatch)
    monkeypatch.setattr(graphs, "count_attention_programs", lambda *_: 8)
    made = []

    def run_rank(exchange: ThreadExchange, size: int = 2) -> list[list[int]]:
        shard, executor = make_rank(exchange, size, model(4), records=True)
        pipeline = ShuffledPipeline([shard], 3, executors=[executor])
        (stage,) = pipeline.stages
        drawn = []
        for n_cached, tokens, tree in ((0, TEXTS[0], None), (11, [5], TREE)):
            stage.warm_up(answers=exchange.rank == 0)
            made.append(CallAgain.n_graphs)
            pipeline.run([pipeline.work(0, n_cached, tokens, tree)])
            if exchange.rank:
                multiply_part(executor, exchange, 2 if tree is None else 8)  # rows of a bucket
            else:
                assert pipeline.activations is not None
                drawn.append(stage.verify(pipeline.activations)[0].tokens)
            executor.forget_graphs()
        return drawn

    (expected,) = RankThreads(1).run(lambda exchange: run_rank(exchange, 1))
    recorded = CallAgain.n_graphs
    leader, follower = RankThreads(2).run(run_rank)
    assert (leader, follower) == (expected, [])
    assert made[1] == 2 * made[0], "everything is recorded again"
    assert CallAgain.n_graphs - recorded == recorded + 2 * len(BUCKETS), "a follower records no answers"
