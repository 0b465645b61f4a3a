"""``draft-model`` on the executor drafts as on a CPU, and the target, on one too, writes the same text."""

from __future__ import annotations

from typing import Any

import pytest

from engine.cuda.executor import Executor
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target.info import TargetInfo
from speculators.draft_model.config import DraftModelConfig
from speculators.draft_model.drafter import Drafter
from speculators.draft_model.speculator import DraftModel
from tests.engine.cuda.small_targets import BUCKETS, SPLIT, small_shards, small_target
from tests.support.engines import complete_all, make_engine

PROMPTS = [[(7 * i + j * (i + 3)) % 38 + 3 for j in range(9 + 2 * i)] for i in range(2)]


def draft_model(exact: bool) -> DraftModel:
    """The target itself: always right, but for what its cache lacks."""
    (shard,) = small_shards("llama", 1)
    executor = Executor(shard, SPLIT, BUCKETS) if exact else None
    return DraftModel(
        DraftModelConfig(tree_nodes=6, tree_beam=2), Drafter(shard, TargetInfo(shard.spec, 80, 4, 120), executor)
    )


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9}])
def test_drafts_are_those_of_a_cpu(sampling: dict[str, Any]) -> None:
    found = []
    for exact in (False, True):
        engine = make_engine(
            small_target("llama", exact=exact),
            None,
            SchedulerOptions(),
            {"on-executor": lambda _, e=exact: draft_model(e)},
        )
        requests = [
            Request(prompt, SamplingParams(max_tokens=8, seed=3, stop_ids=(), **sampling), "on-executor", max_nodes=6)
            for prompt in PROMPTS
        ]
        done = complete_all(engine, requests)
        found.append([(one.token_ids, one.stats.step_tokens) for one in done])
    assert found[0] == found[1]
    assert max(n for _, steps in found[1] for n in steps) > 2  # drafted, and accepted
