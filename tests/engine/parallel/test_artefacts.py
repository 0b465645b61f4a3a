"""Several ranks return the same hidden states, attention rows and top ids to speculators as one rank."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from engine.loop import Engine
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.local import LocalTarget
from speculators.pool import SpeculatorPool
from tests.support.engines import complete_all
from tests.support.rank_threads import threaded_target
from tests.support.tiny_models import random_prompts

Arrays = list[np.ndarray[Any, Any]]
NEEDS = {
    "heads of one rank": Needs(heads=((0, 0), (0, 1))),
    "heads of others": Needs(heads=((1, 3), (3, 2), (3, 0)), hidden_layer=1),
    "heads of all": Needs(heads=((2, 3), (0, 1), (0, 3), (3, 0), (0, 2), (2, 0)), hidden_layer=1, hidden_dims=8),
    "top ids": Needs(node_top_k=3, prompt_top_k=2, top_logprobs=True),
}


class ReadBackRecorder:
    """Records outcomes; its drafts are partly right, so that rows of accepted nodes are chosen."""

    name = "recorder"

    def __init__(self, needs: Needs, answer: list[int]) -> None:
        self.needs, self._answer = needs, answer
        self.arrays: Arrays = []
        self.n_accepted = 0

    def begin(self, request: RequestView) -> None: ...

    def propose(self, request: RequestView, budget: int) -> list[Branch]:
        context = request.context.view.tolist()
        future = self._answer[len(context) - request.n_prompt :]
        return [Branch([5, 6], "recorder"), Branch([*future[:2], 7], "recorder")] if len(future) > 3 else []

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        self.n_accepted += max(0, len(outcome.tokens) - 1)
        artefacts, tops = outcome.artefacts, outcome.top_ids
        found: list[Any] = [] if artefacts is None else [artefacts.attention, artefacts.hidden]
        found += [outcome.prompt_top_ids, outcome.prompt_top_logprobs]
        self.arrays += [one for one in found if one is not None]
        self.arrays += [np.asarray(tops[node]) for node in sorted(tops)]

    def end(self, request: RequestView) -> None: ...


def read_back(target: LocalTarget, answers: list[list[int]]) -> tuple[list[list[int]], list[ReadBackRecorder]]:
    """Texts of one batch with a recorder for each of ``NEEDS``."""
    recorders = [ReadBackRecorder(needs, answer) for needs, answer in zip(NEEDS.values(), answers, strict=True)]
    recorder_of = dict(zip(NEEDS, recorders, strict=True))
    pool = SpeculatorPool(extra={name: partial(lambda name, _: recorder_of[name], name) for name in NEEDS})
    jobs = [Request(text, SamplingParams(max_tokens=10), name) for text, name in zip(PROMPTS, NEEDS, strict=True)]
    done = complete_all(Engine(target, pool, SchedulerOptions(prefill_chunk=13)), jobs)
    return [one.token_ids for one in done], recorders


PROMPTS = random_prompts(len(NEEDS))


@pytest.mark.parametrize(
    ("family", "ranks", "stages"),
    [("llama", 2, 2), ("gemma3", 4, 1), pytest.param("mistral", 4, 2, marks=pytest.mark.matrix)],
)
def test_what_is_read_back_is_that_of_one_rank(family: str, ranks: int, stages: int) -> None:
    texts, _ = read_back(threaded_target(family, 1), [[]] * len(NEEDS))
    _, alone = read_back(threaded_target(family, 1), texts)
    found, recorders = read_back(threaded_target(family, ranks, stages), texts)
    assert found == texts
    for name, recorder, expected in zip(NEEDS, recorders, alone, strict=True):
        assert expected.n_accepted > 1
        assert len(expected.arrays) > 4, name
        assert [one.shape for one in recorder.arrays] == [one.shape for one in expected.arrays], name
        for one, other in zip(recorder.arrays, expected.arrays, strict=True):
            assert abs(one - other).max() <= 4e-6 * abs(other).max(), name
    rows = [one for one in recorders[2].arrays if len(one) == len(NEEDS["heads of all"].heads)]
    assert all(not np.allclose(one, other) for row in rows[:3] for one, other in pairwise(row)), "rows of one head"
