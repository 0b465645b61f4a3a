"""Trained drafters on the last stage: the text stays Hugging Face's, and each draft is that of a drafter that reads the
whole text anew, whatever was batched, cut into chunks, copied, moved or preempted before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from engine.drafter.checkpoint.checkpoint import DrafterCheckpoint
from engine.drafter.serving import blocks, levels, runtime
from engine.drafter.serving.committed import Committed
from engine.drafter.serving.pairs import PairDrafting
from engine.drafter.trees.rounds import BlockAsk
from engine.loop import Completion, Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from speculators.pool import SpeculatorPool
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.served_drafters import (
    KINDS,
    DraftsAnew,
    Recording,
    drafted_target,
    drafter_spec,
    random_checkpoint,
)
from tests.support.tiny_models import random_prompts, reference_tokens, tiny_shards

N_TOKENS, N_NODES = 20, 12
SETUPS = [(1, 1, 512), (5, 2, 17), (5, 4, 40)]  # batch size, stages, prefill chunk
# All setups for one kind; the others take turns.
KINDS_AND_SETUPS = [(k, s) for i, k in enumerate(KINDS) for s in (SETUPS if k == "eagle 3" else SETUPS[i % 3 :][:1])]


def checkpoint_of(kind: str, family: str = "llama") -> DrafterCheckpoint:
    return random_checkpoint(drafter_spec(kind, tiny_shards(family, 1)[0].spec))


def engine_of(
    family: str, checkpoint: DrafterCheckpoint, options: SchedulerOptions | None = None, every: int = 1, **target: Any
) -> tuple[Engine, Recording]:
    recording = Recording(checkpoint.spec.method, every)
    pool = SpeculatorPool(extra={checkpoint.spec.method: lambda _: recording})
    return Engine(drafted_target(family, checkpoint, **target), pool, options), recording


def run(engine: Engine, method: str, prompts: list[list[int]], batch: int, **params: Any) -> list[Completion]:
    jobs = [Request(prompt, sampling(**params), method, max_nodes=N_NODES) for prompt in prompts]
    return complete_all(engine, jobs, batch)


def sampling(**params: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": N_TOKENS, "stop_ids": (2,), **params})


def check_drafts(
    family: str, checkpoint: DrafterCheckpoint, told: Recording, prompts: list[list[int]], **params: Any
) -> None:
    """Every draft is that of a drafter that reads the text anew."""
    assert told.told, "nothing was drafted"
    oracle = DraftsAnew(family, checkpoint)
    for text, branch in told.told:
        n_prompt = max(len(prompt) for prompt in prompts if text[: len(prompt)] == prompt)
        depth = N_TOKENS - (len(text) - n_prompt) - 1
        ask = BlockAsk(sampling(**params), None, text[-1], len(text), depth, N_NODES)
        anew = oracle.draft(text, ask)
        assert anew is not None
        assert (list(branch.tokens), branch.parents) == (list(anew.tokens), anew.parents)
        if anew.scores is not None:
            assert branch.scores == pytest.approx(anew.scores, rel=1e-3)


@pytest.mark.parametrize(("kind", "setup"), KINDS_AND_SETUPS, ids=str)
def test_greedy_text_and_drafts(kind: str, setup: tuple[int, int, int]) -> None:
    batch, stages, chunk = setup
    checkpoint, prompts = checkpoint_of(kind), random_prompts(6)
    engine, told = engine_of("llama", checkpoint, SchedulerOptions(prefill_chunk=chunk), stages=stages)
    done = run(engine, checkpoint.spec.method, prompts, batch)
    wanted = [reference_tokens("llama", tuple(prompt), N_TOKENS, eos_token_id=2) for prompt in prompts]
    assert [one.token_ids for one in done] == wanted
    check_drafts("llama", checkpoint, told, prompts)


@pytest.mark.parametrize("kind", KINDS)
def test_coupled_text_and_drafts(kind: str) -> None:
    params: dict[str, Any] = {"temperature": 0.8, "seed": 5}
    checkpoint, prompts = checkpoint_of(kind), random_prompts(4)
    plain = make_engine(make_target("llama"))
    wanted = complete_all(plain, [Request(prompt, sampling(**params), "autoregressive") for prompt in prompts], 4)
    engine, told = engine_of("llama", checkpoint, stages=2)
    done = run(engine, checkpoint.spec.method, prompts, 4, **params)
    assert [one.token_ids for one in done] == [one.token_ids for one in wanted]
    check_drafts("llama", checkpoint, told, prompts, **params)


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_of_draws_are_those_of_a_drafter_that_reads_anew(kind: str) -> None:
    params: dict[str, Any] = {"temperature": 0.8, "seed": 5, "verification": "rejection"}
    checkpoint, prompts = checkpoint_of(kind), random_prompts(3)
    engine, told = engine_of("llama", checkpoint)
    run(engine, checkpoint.spec.method, prompts, 3, **params)
    check_drafts("llama", checkpoint, told, prompts, **params)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copied_prefix_brings_the_drafters_rows(kind: str) -> None:
    checkpoint, [first, other] = checkpoint_of(kind), random_prompts(2)
    prompts = [first + other, first + other[:5] + first, first + other]
    engine, told = engine_of("llama", checkpoint, SchedulerOptions(prefix_cache=True), block_size=8)
    done = [run(engine, checkpoint.spec.method, [prompt], 1)[0] for prompt in prompts]
    assert [one.stats.cached_tokens > 0 for one in done] == [False, True, True]
    assert done[0].token_ids == done[2].token_ids
    check_drafts("llama", checkpoint, told, prompts)


@pytest.mark.parametrize("kind", KINDS)
def test_preempted_sequences_draft_as_before(kind: str) -> None:
    checkpoint, prompts = checkpoint_of(kind), random_prompts(5)
    engine, told = engine_of("llama", checkpoint, n_blocks=26, block_size=8)
    done = run(engine, checkpoint.spec.method, prompts, 5)
    assert sum(one.stats.preemptions for one in done)
    wanted = [reference_tokens("llama", tuple(prompt), N_TOKENS, eos_token_id=2) for prompt in prompts]
    assert [one.token_ids for one in done] == wanted
    check_drafts("llama", checkpoint, told, prompts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("most", "every"), [(3, 4), (256, 4), (256, 100)])
def test_drafts_that_are_asked_for_now_and_then_are_those_of_a_drafter_that_reads_anew(
    kind: str, most: int, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is read before a draft, when much of it waits, before others copy it, and before its sequence is gone;
    sequences move and are preempted meanwhile."""
    monkeypatch.setattr(runtime, "MOST_WAITING", most)
    checkpoint, [first, other, third] = checkpoint_of(kind), random_prompts(3)
    prompts = [first + other, first + third, third + first, first + other, third + other]
    answers = [reference_tokens("llama", tuple(prompt), N_TOKENS, eos_token_id=2) for prompt in prompts]
    prompts += [third + other + answers[-1] + first]  # begins with rows that waited when their sequence ended
    options = SchedulerOptions(prefill_chunk=7, prefix_cache=True)
    engine, told = engine_of("llama", checkpoint, options, every=every, n_blocks=24, block_size=8)
    method = checkpoint.spec.method
    done = [one for some in (prompts[:3], prompts[3:5], prompts[5:]) for one in run(engine, method, some, 2)]
    assert done[-1].stats.cached_tokens > len(prompts[4])
    answers += [reference_tokens("llama", tuple(prompts[-1]), N_TOKENS, eos_token_id=2)]
    assert [one.token_ids for one in done] == answers
    check_drafts("llama", checkpoint, told, prompts)


def test_a_drafter_reads_what_waits_in_one_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[int]] = []
    learn = PairDrafting.learn

    def learn_and_tell(drafting: PairDrafting, committed: Sequence[Committed]) -> None:
        read.append([len(one.tokens) for one in committed])
        learn(drafting, committed)

    monkeypatch.setattr(PairDrafting, "learn", learn_and_tell)
    checkpoint, [prompt] = checkpoint_of("eagle 3"), random_prompts(1)
    engine, _ = engine_of("llama", checkpoint, every=10_000)
    [done] = run(engine, checkpoint.spec.method, [prompt], 1)
    assert done.stats.target_forwards > 10
    # The prompt came with the wish for a draft; the row of the last step, which ended the text, is of no use.
    assert read == [[done.stats.target_forwards - 1]]


@pytest.mark.parametrize("kind", ["medusa", "eagle 3", "dspark"])
def test_a_drafter_that_fails_costs_drafts_and_nothing_else(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no draft")

    checkpoint, prompts = checkpoint_of(kind), random_prompts(3)
    engine, told = engine_of("llama", checkpoint, stages=2)
    for module in (blocks, levels):
        for name in ("block_trees", "grow_levels", "choose"):
            monkeypatch.setattr(module, name, fails, raising=False)
    done = run(engine, checkpoint.spec.method, prompts, 3)
    wanted = [reference_tokens("llama", tuple(prompt), N_TOKENS, eos_token_id=2) for prompt in prompts]
    assert [one.token_ids for one in done] == wanted
    assert not told.told
    assert caplog.text.count("the drafter failed") == 1  # its sequences are not drafted for again


def test_a_drafter_that_fails_to_catch_up_drafts_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no rows")

    monkeypatch.setattr(PairDrafting, "learn", fails)
    checkpoint, [prompt] = checkpoint_of("eagle 3"), random_prompts(1)
    engine, told = engine_of("llama", checkpoint, every=4)
    [done] = run(engine, checkpoint.spec.method, [prompt], 1)
    assert done.token_ids == reference_tokens("llama", tuple(prompt), N_TOKENS, eos_token_id=2)
    assert caplog.text.count("the drafter failed") == 1
    assert len(told.told) == 1  # behind the prompt, before anything waited
