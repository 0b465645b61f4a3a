"""What recorded graphs do with steps: the same launches with the same buffers, whatever the buffers hold."""

from __future__ import annotations

import logging

import pytest
import torch

from engine.cuda import graphs
from engine.cuda.executor import Executor
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.stage.stage import Stage
from engine.step import SequenceStart, Step, Work
from tests.engine.cuda.call_again import CallAgain, call_again
from tests.engine.cuda.scored_texts import Pipeline
from tests.engine.cuda.small_targets import BUCKETS, SPLIT, small_shards
from tests.engine.cuda.test_compiled import launched_kernels
from tests.engine.cuda.test_logits import TEXT, TEXTS, counted, right_among_wrong, token_by_token

ROOM = 40 * 80  # bytes of 40 partials: as many as a tree has


def test_steps_in_fixed_buffers_have_the_bits_of_plain_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    call_again(monkeypatch)
    monkeypatch.setattr(graphs, "PROGRAMS", 8)  # more than there are items: most find nothing to do
    shards = small_shards("llama", 1)
    made = [Executor(shard, SPLIT, BUCKETS, ROOM, records=True) for shard in shards]
    pipeline, n = Pipeline(shards, 6, executors=made), len(TEXT) - 7
    tree, path = right_among_wrong()
    wanted = token_by_token("llama")
    pipeline.score([pipeline.work(1, 0, TEXTS[4])])
    assert CallAgain.n_replays == 0, "a long prompt's partials are more than there is room for"
    pipeline.score([pipeline.work(0, 0, TEXT[: n - 3])])
    pipeline.score([pipeline.work(0, n - 3, TEXT[n - 3 : n])])
    assert torch.equal(pipeline.score([pipeline.work(0, n, TEXT[n : n + 1])]), wanted[:1])
    assert torch.equal(pipeline.score([pipeline.work(0, n, TEXT[n : n + 1], tree)])[path], wanted)
    logits = pipeline.score([pipeline.work(0, n + 3, [TEXT[n + 3]], keep=path[1:3])])  # its keys move, once
    assert torch.equal(logits, wanted[3:4])
    assert torch.equal(pipeline.score([pipeline.work(0, n + 4, [TEXT[n + 4]])]), wanted[4:5])
    assert CallAgain.n_replays == 6


def test_a_step_that_is_recorded_when_it_comes_leaves_alone_what_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    call_again(monkeypatch)
    shards = small_shards("llama", 1)
    pipeline = Pipeline(shards, 6, executors=[Executor(shard, SPLIT, BUCKETS, ROOM, records=True) for shard in shards])
    tree, path = right_among_wrong()
    n, wanted = len(TEXT) - 7, token_by_token("llama")
    pipeline.score([pipeline.work(0, 0, TEXT[: n - 3])])
    pipeline.score([pipeline.work(0, n - 3, TEXT[n - 3 : n])])
    pipeline.score([pipeline.work(0, n, TEXT[n : n + 1], tree)])
    recorded = CallAgain.n_graphs
    assert path[1] == 2, "the place of the step's row is that which the kept node leaves"
    logits = pipeline.score([pipeline.work(0, n + 2, [TEXT[n + 2]], keep=path[1:2])])
    assert CallAgain.n_graphs > recorded
    assert torch.equal(logits, wanted[2:3])


def test_all_kernels_are_compiled_and_all_sizes_recorded_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    call_again(monkeypatch)
    launches = counted(monkeypatch)  # and not run: what is computed is of no interest here
    (shard,) = small_shards("llama", 1)
    stage = Stage(shard, 40, 4, executor=Executor(shard, SPLIT, BUCKETS, records=True))
    with caplog.at_level(logging.INFO, "engine.cuda"):
        stage.warm_up()
    said = [record.getMessage().partition(",")[0] for record in caplog.records]
    assert said[1:] == [
        *(f"recorded: layers over {size} rows" for size in BUCKETS),
        *(f"recorded: answers to {size} rows" for size in BUCKETS),
    ]
    assert set(launches) == launched_kernels() - {"_sum_parts"}, "small matrices are not split"
    recorded, start = CallAgain.n_graphs, SequenceStart(0, SamplingParams(temperature=1.0, top_p=0.5), 3, Needs())
    step = Step(0, [Work(0, 0, [5, 6, 7], new_blocks=[0])], [start])
    stage.verify(stage.forward(step, None))
    assert (CallAgain.n_graphs, CallAgain.n_replays) == (recorded, 2)
