"""Trained drafters of a target with tensor-parallel ranks draft what they draft for a target of one rank."""

from __future__ import annotations

import pytest

from engine.drafter.checkpoint.tensors import DrafterCheckpoint
from engine.loop import Completion, Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.local import LocalTarget
from speculators.pool import SpeculatorPool
from tests.support.engines import complete_all
from tests.support.rank_threads import threaded_target
from tests.support.served_drafters import KINDS, Recording, drafted_target, drafter_spec, random_checkpoint
from tests.support.tiny_models import random_prompts, tiny_shards

N_TOKENS = 8
QUICK = {"medusa": (2, 1), "eagle 3": (4, 1), "p-eagle": (2, 2), "dspark": (2, 1)}  # ranks, stages
CELLS = [
    pytest.param(kind, *shape, marks=[pytest.mark.matrix] * (QUICK.get(kind) != shape))
    for kind in KINDS
    for shape in ((2, 1), (2, 2), (4, 1))
]


def complete(target: LocalTarget, checkpoint: DrafterCheckpoint) -> tuple[list[Completion], list[object]]:
    """Completions, and every draft with the text before it."""
    method = checkpoint.spec.method
    recording = Recording(method)
    engine = Engine(target, SpeculatorPool(extra={method: lambda _: recording}), SchedulerOptions(prefill_chunk=40))
    params = [SamplingParams(max_tokens=N_TOKENS, **style) for style in ({}, {"temperature": 0.8, "seed": 5})]  # type: ignore[arg-type]
    jobs = [Request(text, own, method, max_nodes=12) for text, own in zip(random_prompts(2), params, strict=True)]
    done = complete_all(engine, jobs, 2)
    return done, [(text, list(branch.tokens), branch.parents) for text, branch in recording.drafts]


@pytest.mark.parametrize(("kind", "ranks", "stages"), CELLS)
def test_texts_and_drafts_are_those_of_one_rank(kind: str, ranks: int, stages: int) -> None:
    checkpoint = random_checkpoint(drafter_spec(kind, tiny_shards("llama", 1)[0].spec))
    alone, expected = complete(drafted_target("llama", checkpoint), checkpoint)
    done, drafts = complete(threaded_target("llama", ranks, stages, drafter=checkpoint), checkpoint)
    assert [one.token_ids for one in done] == [one.token_ids for one in alone]
    assert [one.stats.target_forwards for one in done] == [one.stats.target_forwards for one in alone]
    assert len(expected) >= 4
    assert drafts == expected
