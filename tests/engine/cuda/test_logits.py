"""The logits of a text's positions have the same bits whatever they are scored with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import GridExecutor

from engine.cuda.kernels import gemm
from engine.cuda.kernels.gemm import LEAST_INPUTS
from engine.drafter.part import DrafterPart
from engine.drafter.serving.relay import TapRelay
from engine.protocol import Needs
from engine.step import WorkResult
from engine.tree import TokenTree
from tests.engine.cuda import production
from tests.engine.cuda.scored_texts import Pipeline
from tests.engine.cuda.small_targets import IN_PARTS, SMALL_INPUTS, small_model, small_shards
from tests.support.served_drafters import drafter_spec, random_checkpoint

FAMILIES = ("llama", "gemma3")
ALL = (*FAMILIES, *(family + IN_PARTS for family in FAMILIES))
TEXTS = [[(5 * i + j * (i + 2)) % 38 + 3 for j in range(26 + 3 * i)] for i in range(5)]
TEXT = TEXTS[0]
DEEP = 6  # last tokens, which a tree drafts


@pytest.fixture(autouse=True, scope="module")
def small_products_in_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gemm, "LEAST_INPUTS", SMALL_INPUTS)
        yield


@cache
def token_by_token(family: str) -> Tensor:
    """Logits of the last ``DEEP + 1`` positions by plain decoding."""
    pipeline, n = Pipeline(small_shards(family, 1), 1), len(TEXT) - DEEP - 1
    pipeline.score([pipeline.work(0, 0, TEXT[:n])])
    rows = [pipeline.score([pipeline.work(0, i, [TEXT[i]])]) for i in range(n, len(TEXT))]
    return torch.cat(rows)


def right_among_wrong() -> tuple[TokenTree, list[int]]:
    """A tree in which the text's last tokens are a path among others, and that path's rows; the root is one."""
    tokens: list[int] = []
    parents: list[int] = []
    rows, above, astray = [0], -1, -1
    for token in TEXT[-DEEP:]:
        tokens += [token + 1, token, token + 2]
        parents += [above, above, astray]
        astray, above = len(tokens) - 3, len(tokens) - 2
        rows.append(above + 1)
    return TokenTree(tokens, parents), rows


@pytest.mark.parametrize("family", ALL)
def test_plain_decoding_is_hugging_faces(family: str) -> None:
    with torch.inference_mode():
        wanted = small_model(family)(torch.tensor([TEXT])).logits[0, -DEEP - 1 :]
    assert torch.allclose(token_by_token(family), wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "chunk", "stages"), [("llama", 5, 1), ("gemma3 in parts", 5, 1), *((family, 64, 2) for family in ALL)]
)
def test_a_prompt_in_chunks_has_the_bits_of_plain_decoding(family: str, chunk: int, stages: int) -> None:
    pipeline = Pipeline(small_shards(family, stages), 2, partial_bytes=1)  # key head by key head
    parts = [
        pipeline.score([pipeline.work(0, first, TEXT[first : first + chunk])]) for first in range(0, len(TEXT), chunk)
    ]
    assert torch.equal(torch.cat(parts)[-DEEP - 1 :], token_by_token(family))


@pytest.mark.parametrize(
    ("family", "batch", "stages"), [("gemma3", 5, 1), ("llama in parts", 5, 1), *((family, 1, 2) for family in ALL)]
)
def test_a_path_of_a_tree_has_the_bits_of_plain_decoding(family: str, batch: int, stages: int) -> None:
    pipeline = Pipeline(small_shards(family, stages), 3)
    ends = [len(text) - DEEP - 1 for text in TEXTS[:batch]]
    pipeline.score([pipeline.work(i, 0, TEXTS[i][: ends[i]]) for i in reversed(range(batch))])
    tree, path = right_among_wrong()
    others = [TokenTree([3, 4, 5, 6], [-1, 0, -1, 2]), None, TokenTree([9], [-1]), None]
    works = [pipeline.work(0, ends[0], TEXT[ends[0] : ends[0] + 1], tree)]
    for i in range(1, batch):
        n = 1 if others[i - 1] is not None else 3  # a root with a tree, or a chunk
        works.insert(i // 2, pipeline.work(i, ends[i], TEXTS[i][ends[i] : ends[i] + n], others[i - 1]))
    before = works[: next(i for i, work in enumerate(works) if work.seq == 0)]
    first = sum(len(work.tokens) + len(work.tree or ()) for work in before)
    logits = pipeline.score(works)
    assert torch.equal(logits[[first + row for row in path]], token_by_token(family))


def counted(monkeypatch: pytest.MonkeyPatch, run: Any = None) -> Counter[str]:
    """Launches from now on by kernel; ``run`` does one, or nothing does."""
    launches: Counter[str] = Counter()

    def counting(self: GridExecutor, *args: Any, **kwargs: Any) -> None:
        launches[self.fn.__name__] += 1
        if run is not None:
            run(self, *args, **kwargs)

    monkeypatch.setattr(GridExecutor, "__call__", counting)
    return launches


@pytest.mark.parametrize(("family", "n_launches", "n_sums"), [
    ("llama", 10, 0), ("gemma3", 12, 0), ("llama in parts", 10, 2), ("gemma3 in parts", 12, 1),
])  # fmt: skip
def test_a_layer_is_twelve_launches_at_most_whatever_the_step(
    family: str, n_launches: int, n_sums: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of parts are launches where a stage ends, unless a norm does so, and behind the head; in no layer."""
    pipeline = Pipeline(small_shards(family, 1), 4)
    pipeline.score([pipeline.work(i, 0, TEXTS[i][:20]) for i in range(2)])
    launches = counted(monkeypatch, GridExecutor.__call__)
    tree, path = right_among_wrong()
    pipeline.score([pipeline.work(0, 20, [7], tree), pipeline.work(1, 20, [7, 8, 9])])
    beside = Counter({"_embed": 1, "_rms_norm": 1, "_product": 1, "_sum_parts": n_sums})
    assert (launches - beside).total() == 2 * n_launches
    assert launches["_sum_parts"] == n_sums
    assert launches["_attend"] == launches["_combine"] == launches["_rope_write"] == 2
    launches.clear()
    pipeline.score([pipeline.work(0, 24, [7], keep=path[1:4]), pipeline.work(1, 23, [7])])
    assert (launches - beside).total() == 2 * n_launches + 1
    assert launches["_move_rows"] == 1


def test_layers_of_large_models_are_twelve_launches_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = counted(monkeypatch)
    monkeypatch.setattr(gemm, "LEAST_INPUTS", LEAST_INPUTS)
    for name, weights in production.LAYERS.items():
        launches.clear()
        production.run(weights)
        is_gemma = weights.behind_mlp is not None
        assert launches["_sum_parts"] == (0 if is_gemma else 1), name  # where the stage ends
        assert launches.total() - launches["_sum_parts"] == (12 if is_gemma else 10), name


def embedding_and_layer_tapped(family: str) -> DrafterPart:
    """The part of a drafter that reads what the first layer reads, and what it leaves."""
    (shard,) = small_shards(family, 1)
    spec = replace(drafter_spec("dflash", shard.spec), taps=(-1, 0))
    return DrafterPart(TapRelay(spec, random_checkpoint(spec).tensors, shard.range, shard.dtype, shard.device))


@pytest.mark.parametrize("family", FAMILIES)
def test_states_attention_rows_and_what_a_drafter_taps_are_those_of_a_cpu(family: str) -> None:
    needs = Needs(hidden_layer=0, heads=((0, 1), (1, 0)), drafter=True)
    tree, path = right_among_wrong()
    accepted = [row - 1 for row in path[1:3]]
    found = []
    for exact in (True, False):
        pipeline = Pipeline(small_shards(family, 1), 5, needs, exact, drafter=embedding_and_layer_tapped(family))
        pipeline.score([pipeline.work(0, 0, TEXT[:20])])
        pipeline.score([pipeline.work(0, 20, [TEXT[20]], tree)])
        (stage,) = pipeline.stages
        rows = stage.attention([WorkResult(0, tokens=[*accepted, 4], accepted=accepted)])
        assert pipeline.activations is not None
        assert pipeline.activations.tapped is not None
        assert pipeline.activations.fused is not None
        told = (pipeline.activations.tapped[0], pipeline.activations.fused[0])
        found.append([*(states.numpy() for states in told), *(rows[0, place] for place in (0, 1))])
    for ours, cpus in zip(*found, strict=True):
        assert ours.shape == cpus.shape
        assert np.allclose(ours, cpus, atol=1e-4)
