"""Trained drafters on the last stage: texts are those of the target, and every draft equals that of a drafter that
reads the whole text at once."""

from __future__ import annotations

from typing import Any

import pytest

from engine.drafter.checkpoint.tensors import DrafterCheckpoint
from engine.drafter.serving import blocks, pairs, runtime
from engine.drafter.serving.pairs import PairDrafting
from engine.drafter.trees.draft_tree import DraftRequest
from engine.loop import Completion, Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from speculators.pool import SpeculatorPool
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.served_drafters import (
    CUT,
    KINDS,
    DraftsAnew,
    Recording,
    drafted_target,
    drafter_spec,
    random_checkpoint,
    with_own_head,
)
from tests.support.tiny_models import random_prompts, reference_tokens, tiny_model, tiny_shards

N_TOKENS, N_NODES = 20, 12
SETUPS = [(1, 1, 512), (5, 2, 17), (5, 4, 40)]  # batch size, stages, prefill chunk
STYLES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 0.8, "seed": 5, "verification": "rejection"},
]
# Every kind in three cells set-up x style; `make test` runs the first.
CELLS = [
    pytest.param(kind, SETUPS[(i + j) % 3], STYLES[(i // 3 + 2 * j) % 3], marks=[pytest.mark.matrix] * (j > 0))
    for i, kind in enumerate(KINDS)
    for j in range(3)
]
# Most rows that wait, and tokens between drafts; `make test` runs each kind once.
WAITS = [(256, 1), (3, 4), (256, 4), (256, 100)]
WAITING = [
    pytest.param(kind, *wait, marks=[pytest.mark.matrix] * ((i - j) % 4 != 0))
    for i, kind in enumerate(KINDS)
    for j, wait in enumerate(WAITS)
]


def checkpoint_of(kind: str) -> DrafterCheckpoint:
    return random_checkpoint(drafter_spec(kind, tiny_shards("llama", 1)[0].spec))


def engine_of(
    checkpoint: DrafterCheckpoint, options: SchedulerOptions | None = None, every: int = 1, **target: Any
) -> tuple[Engine, Recording]:
    recording = Recording(checkpoint.spec.method, every)
    pool = SpeculatorPool(extra={checkpoint.spec.method: lambda _: recording})
    return Engine(drafted_target("llama", checkpoint, **target), pool, options), recording


def greedy_text(prompt: list[int]) -> list[int]:
    return reference_tokens("llama", tuple(prompt), N_TOKENS, eos_token_id=2)


def run(engine: Engine, method: str, prompts: list[list[int]], batch: int, **params: Any) -> list[Completion]:
    jobs = [Request(prompt, sampling(**params), method, max_nodes=N_NODES) for prompt in prompts]
    return complete_all(engine, jobs, batch)


def sampling(**params: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": N_TOKENS, "stop_ids": (2,), **params})


def check_drafts(checkpoint: DrafterCheckpoint, recording: Recording, prompts: list[list[int]], **params: Any) -> None:
    """Every draft is that of a drafter that reads the whole text at once."""
    assert recording.drafts, "nothing was drafted"
    oracle = DraftsAnew("llama", checkpoint)
    for text, branch in recording.drafts:
        n_prompt = max(len(prompt) for prompt in prompts if text[: len(prompt)] == prompt)
        depth = N_TOKENS - (len(text) - n_prompt) - 1
        request = DraftRequest(sampling(**params), None, text[-1], len(text), depth, N_NODES)
        anew = oracle.draft(text, request)
        assert anew is not None
        assert (list(branch.tokens), branch.parents) == (list(anew.tokens), anew.parents)
        if anew.scores is not None:
            assert branch.scores == pytest.approx(anew.scores, rel=1e-3)


@pytest.mark.parametrize(("kind", "setup", "style"), CELLS)
def test_texts_are_the_targets_and_drafts_those_of_the_whole_text(
    kind: str, setup: tuple[int, int, int], style: dict[str, Any]
) -> None:
    batch, stages, chunk = setup
    checkpoint, prompts = checkpoint_of(kind), random_prompts(5)
    engine, recording = engine_of(checkpoint, SchedulerOptions(prefill_chunk=chunk), stages=stages)
    done = run(engine, checkpoint.spec.method, prompts, batch, **style)
    if "verification" not in style:
        plain = make_engine(make_target("llama"))
        expected = complete_all(plain, [Request(prompt, sampling(**style), "autoregressive") for prompt in prompts])
        assert [one.token_ids for one in done] == [one.token_ids for one in expected]
    check_drafts(checkpoint, recording, prompts, **style)


@pytest.mark.parametrize(("kind", "most", "every"), WAITING)
def test_drafts_after_waiting_copies_and_moves_are_those_of_the_whole_text(
    kind: str, most: int, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting rows are read before a draft, when there are many, before a copy, and before their sequence ends."""
    monkeypatch.setattr(runtime, "MOST_WAITING", most)
    checkpoint, [first, other, third] = checkpoint_of(kind), random_prompts(3)
    prompts = [first + other, first + third, third + first, first + other, third + other]
    # The last prompt begins with rows that waited when their sequence ended.
    prompts += [prompts[-1] + greedy_text(prompts[-1]) + first]
    options = SchedulerOptions(prefill_chunk=7, prefix_cache=True)
    engine, recording = engine_of(checkpoint, options, every=every, n_blocks=24, block_size=8)
    phases = (prompts[:3], prompts[3:5], prompts[5:])
    done = [one for some in phases for one in run(engine, checkpoint.spec.method, some, 2)]
    assert done[5].stats.cached_tokens > len(prompts[4])
    assert [one.token_ids for one in done] == [greedy_text(prompt) for prompt in prompts]
    check_drafts(checkpoint, recording, prompts)


@pytest.mark.parametrize("kind", CUT)
def test_a_drafter_that_cuts_the_head_of_the_target_drafts_as_with_an_own_head_of_these_rows(kind: str) -> None:
    cut, prompts = checkpoint_of(kind), random_prompts(3)
    assert cut.spec.uses_part_of_target_head
    drafts = []
    for checkpoint in (cut, with_own_head(cut, tiny_model("llama").lm_head.weight)):
        engine, recording = engine_of(checkpoint, stages=2)
        done = run(engine, checkpoint.spec.method, prompts, 3)
        assert [one.token_ids for one in done] == [greedy_text(prompt) for prompt in prompts]
        drafts.append(recording.drafts)
    assert len(drafts[0]) == len(drafts[1]) > 0
    for (text, one), (same_text, other) in zip(*drafts, strict=True):
        assert (text, one.tokens, one.parents) == (same_text, other.tokens, other.parents)
        assert one.scores is None or one.scores == pytest.approx(other.scores, rel=1e-3)


QUICK = ("medusa", "eagle 3", "p-eagle", "dspark")


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.matrix] * (k not in QUICK)) for k in KINDS])
def test_drafts_of_preempted_sequences_are_those_of_the_whole_text(kind: str) -> None:
    checkpoint, prompts = checkpoint_of(kind), random_prompts(5)
    engine, recording = engine_of(checkpoint, n_blocks=26, block_size=8)
    done = run(engine, checkpoint.spec.method, prompts, 5)
    assert sum(one.stats.preemptions for one in done) > 0
    assert [one.token_ids for one in done] == [greedy_text(prompt) for prompt in prompts]
    check_drafts(checkpoint, recording, prompts)


@pytest.mark.parametrize("kind", ["medusa", "eagle 3", "dspark", "eagle 3 catching up"])
def test_a_failing_drafter_costs_its_drafts_only(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no draft")

    kind, is_late, _ = kind.partition(" catching up")
    checkpoint, prompts = checkpoint_of(kind), random_prompts(1 if is_late else 3)
    engine, recording = engine_of(checkpoint, stages=2, every=4 if is_late else 1)
    if is_late:
        monkeypatch.setattr(PairDrafting, "learn", fail)
    else:
        for module in (blocks, pairs):
            for name in ("draft_blocks", "choose_tokens"):
                monkeypatch.setattr(module, name, fail, raising=False)
    done = run(engine, checkpoint.spec.method, prompts, 3)
    assert [one.token_ids for one in done] == [greedy_text(prompt) for prompt in prompts]
    assert len(recording.drafts) == (1 if is_late else 0)  # after the prompt, before any row waited
    assert caplog.text.count("the drafter failed") == 1  # no further draft is tried
