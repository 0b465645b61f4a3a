"""The logits of a position have the same bits whatever they are scored with."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.cuda import graphs
from engine.cuda.executor import Executor
from engine.cuda.kernels import gemm
from engine.cuda.products import Products
from engine.drafter.part import DrafterPart
from engine.drafter.serving.relay import TapRelay
from engine.protocol import Needs
from engine.step import WorkResult
from engine.tree import TokenTree
from tests.engine.cuda.call_again import CallAgain, call_again
from tests.engine.cuda.small_targets import BUCKETS, SPLIT, ShuffledPipeline, small_model, small_shards
from tests.support.served_drafters import drafter_spec, random_checkpoint

TEXTS = [[(5 * i + j * (i + 2)) % 38 + 3 for j in range(26 + 3 * i)] for i in range(5)]
TEXT = TEXTS[0]
DEEP = 6  # last tokens, which a tree drafts


@cache
def token_by_token(family: str) -> Tensor:
    """Logits of the last ``DEEP + 1`` positions by plain decoding."""
    pipeline, n = ShuffledPipeline(small_shards(family, 1), 1), len(TEXT) - DEEP - 1
    pipeline.score([pipeline.work(0, 0, TEXT[:n])])
    rows = [pipeline.score([pipeline.work(0, i, [TEXT[i]])]) for i in range(n, len(TEXT))]
    return torch.cat(rows)


def right_among_wrong() -> tuple[TokenTree, list[int]]:
    """A tree with the text's last tokens as a path among others, and the rows of root and path."""
    tokens: list[int] = []
    parents: list[int] = []
    rows, above, astray = [0], -1, -1
    for token in TEXT[-DEEP:]:
        tokens += [token + 1, token, token + 2]
        parents += [above, above, astray]
        astray, above = len(tokens) - 3, len(tokens) - 2
        rows.append(above + 1)
    return TokenTree(tokens, parents), rows


def tiered(*case: Any) -> Any:
    """The small llama is enough for a quick run."""
    return pytest.param(*case, marks=pytest.mark.cluster if case[0] == "llama" else pytest.mark.matrix)


@pytest.mark.parametrize(("family", "chunk", "stages"), [
    tiered("llama", 5, 1), tiered("gemma3", 64, 2),
])  # fmt: skip
def test_a_prompt_in_chunks_has_the_bits_of_plain_decoding_and_the_logits_of_hugging_face(
    family: str, chunk: int, stages: int
) -> None:
    with torch.inference_mode():
        theirs = small_model(family)(torch.tensor([TEXT])).logits[0, -DEEP - 1 :]
    assert torch.allclose(token_by_token(family), theirs, atol=1e-4)
    pipeline = ShuffledPipeline(small_shards(family, stages), 2, partial_bytes=1)  # key head by key head
    parts = [
        pipeline.score([pipeline.work(0, first, TEXT[first : first + chunk])]) for first in range(0, len(TEXT), chunk)
    ]
    assert torch.equal(torch.cat(parts)[-DEEP - 1 :], token_by_token(family))


@pytest.mark.parametrize(("family", "batch", "stages"), [
    tiered("llama", 1, 2), tiered("gemma3", 5, 1),
])  # fmt: skip
def test_a_path_of_a_tree_has_the_bits_of_plain_decoding(family: str, batch: int, stages: int) -> None:
    pipeline = ShuffledPipeline(small_shards(family, stages), 3)
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


@pytest.mark.cluster
@pytest.mark.parametrize("row_tile", [16, 32, 64, 128, 256])
def test_row_tiles_and_shared_leaves_change_no_bit(row_tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if row_tile > 32:  # otherwise every leaf has a program of its own
        monkeypatch.setattr(gemm, "LEAST_GROUPS", 1)
    shards = small_shards("llama", 1)
    executors = [Executor(shard, Products(row_tile=row_tile), SPLIT, BUCKETS) for shard in shards]
    pipeline, n = ShuffledPipeline(shards, 3, executors=executors), len(TEXT) - DEEP - 1
    tree, path = right_among_wrong()
    pipeline.score([pipeline.work(0, 0, TEXT[:n])])
    assert torch.equal(pipeline.score([pipeline.work(0, n, TEXT[n : n + 1], tree)])[path], token_by_token("llama"))


def embedding_and_layer_tapped(family: str) -> DrafterPart:
    """A drafter that reads the input and the output of the first layer."""
    (shard,) = small_shards(family, 1)
    spec = replace(drafter_spec("dflash", shard.spec), taps=(-1, 0))
    return DrafterPart(TapRelay(spec, random_checkpoint(spec).tensors, shard.range, shard.dtype, shard.device))


@pytest.mark.matrix
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_states_attention_rows_and_tapped_layers_are_those_of_a_cpu(family: str) -> None:
    needs = Needs(hidden_layer=0, heads=((0, 1), (1, 0)), drafter=True)
    tree, path = right_among_wrong()
    accepted = [row - 1 for row in path[1:3]]
    found = []
    for exact in (True, False):
        pipeline = ShuffledPipeline(
            small_shards(family, 1), 5, needs, exact, drafter=embedding_and_layer_tapped(family)
        )
        pipeline.score([pipeline.work(0, 0, TEXT[:20])])
        pipeline.score([pipeline.work(0, 20, [TEXT[20]], tree)])
        (stage,) = pipeline.stages
        rows = stage.attention([WorkResult(0, tokens=[*accepted, 4], accepted=accepted)])
        assert pipeline.activations is not None
        assert pipeline.activations.tapped is not None
        assert pipeline.activations.fused is not None
        states = (pipeline.activations.tapped[0], pipeline.activations.fused[0])
        found.append([*(one.numpy() for one in states), *(rows[0, place] for place in (0, 1))])
    for ours, cpus in zip(*found, strict=True):
        assert ours.shape == cpus.shape
        assert np.allclose(ours, cpus, atol=1e-4)


ROOM = 40 * 80  # bytes of 40 partials: as many as a tree has


def recorded_pipeline(patch: pytest.MonkeyPatch) -> ShuffledPipeline:
    call_again(patch)
    patch.setattr(
        graphs, "count_attention_programs", lambda *_: 8
    )  # more than there are items: most find nothing to do
    shards = small_shards("llama", 1)
    return ShuffledPipeline(
        shards, 6, executors=[Executor(shard, None, SPLIT, BUCKETS, ROOM, records=True) for shard in shards]
    )


@pytest.mark.matrix
def test_steps_in_fixed_buffers_have_the_bits_of_plain_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline, n = recorded_pipeline(monkeypatch), len(TEXT) - 7
    tree, path = right_among_wrong()
    expected = token_by_token("llama")
    pipeline.score([pipeline.work(1, 0, TEXTS[4])])
    assert CallAgain.n_replays == 0, "a long prompt's partials are more than there is room for"
    pipeline.score([pipeline.work(0, 0, TEXT[: n - 3])])
    pipeline.score([pipeline.work(0, n - 3, TEXT[n - 3 : n])])
    assert torch.equal(pipeline.score([pipeline.work(0, n, TEXT[n : n + 1])]), expected[:1])
    assert torch.equal(pipeline.score([pipeline.work(0, n, TEXT[n : n + 1], tree)])[path], expected)
    logits = pipeline.score([pipeline.work(0, n + 3, [TEXT[n + 3]], keep=path[1:3])])  # its keys move, once
    assert torch.equal(logits, expected[3:4])
    assert torch.equal(pipeline.score([pipeline.work(0, n + 4, [TEXT[n + 4]])]), expected[4:5])
    assert CallAgain.n_replays > 0


@pytest.mark.matrix
def test_recording_a_step_moves_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step's row takes the place that the accepted node leaves: keys that moved twice would be wrong."""
    pipeline, n = recorded_pipeline(monkeypatch), len(TEXT) - 7
    tree, path = right_among_wrong()
    pipeline.score([pipeline.work(0, 0, TEXT[: n - 3])])
    pipeline.score([pipeline.work(0, n - 3, TEXT[n - 3 : n])])
    pipeline.score([pipeline.work(0, n, TEXT[n : n + 1], tree)])
    recorded = CallAgain.n_graphs
    logits = pipeline.score([pipeline.work(0, n + 2, [TEXT[n + 2]], keep=path[1:2])])
    assert CallAgain.n_graphs > recorded
    assert torch.equal(logits, token_by_token("llama")[2:3])
