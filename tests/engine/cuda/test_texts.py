"""The engine's loop on the executor: the CPU's texts, and one log-probability for a token whatever it was scored with.

A log-probability depends on all logits of its row: that it is the same number is as much as that these have the same
bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from engine.loop import Completion
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from speculators.registry import Factory
from speculators.testing import RightAmongWrong
from tests.engine.cuda.small_targets import small_model, small_target
from tests.support.engines import complete_all, make_engine
from tests.support.grammars import letters, of_regex

N_TOKENS = 6
PROMPTS = [[(7 * i + j * (i + 3)) % 38 + 3 for j in range(13 + 2 * i)] for i in range(5)]
END = 26  # behind the letters, which the first ids are; the model's own end is a "c"
DRAWN: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.9},
    {},
    {"temperature": 1.1, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"grammar": of_regex("[abd-f]{9,30}"), "stop_ids": (2, END)},
)


Answers = dict[tuple[int, ...], list[int]]


@dataclass(frozen=True)
class Way:
    batch: int = 1
    chunk: int = 64
    stages: int = 1
    method: str = "autoregressive"
    n: int = 5  # prompts


def run(family: str, way: Way, exact: bool, answers: Answers | None = None) -> list[Completion]:
    trees: dict[str, Factory] = {"right-among-wrong": lambda _: RightAmongWrong(answers or {})}
    target, options = (
        small_target(family, way.stages, exact, letters(END, 41)),
        SchedulerOptions(prefill_chunk=way.chunk),
    )
    engine = make_engine(target, answers, options, trees)
    requests = [
        Request(
            prompt,
            SamplingParams(max_tokens=N_TOKENS, seed=3, logprobs=3, **how),
            way.method,
            max_nodes=9,
        )
        for prompt, how in list(zip(PROMPTS, DRAWN, strict=True))[: way.n]
    ]
    return complete_all(engine, requests, way.batch)


@cache
def on_a_cpu(family: str) -> list[Completion]:
    return run(family, Way(5), exact=False)


@cache
def in_one_batch(family: str) -> list[Completion]:
    return run(family, Way(5), exact=True)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_texts_are_those_of_a_cpu_and_greedy_ones_of_generate(family: str) -> None:
    wanted = [completion.token_ids for completion in on_a_cpu(family)]
    assert [completion.token_ids for completion in in_one_batch(family)] == wanted
    assert max(wanted[4]) < 6, "letters of its grammar"
    ids = torch.tensor([PROMPTS[2]])
    model = small_model(family)
    text = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=N_TOKENS, min_new_tokens=N_TOKENS, do_sample=False
    )
    assert text[0, len(PROMPTS[2]) :].tolist() == wanted[2]


WAYS = {
    "one by one": Way(1, n=2),
    "in chunks of 5, two stages": Way(5, 5, 2),
    "with trees": Way(5, 64, 1, "right-among-wrong"),
    "with trees, chunks of 5, two stages": Way(5, 5, 2, "right-among-wrong"),
}


@pytest.mark.parametrize(("family", "way"), [*(("llama", way) for way in WAYS), ("gemma3", [*WAYS][-1])])
def test_log_probabilities_have_the_same_bits_in_every_way(family: str, way: str) -> None:
    wanted = in_one_batch(family)
    answers = {tuple(prompt): one.token_ids for prompt, one in zip(PROMPTS, on_a_cpu(family), strict=True)}
    done = run(family, WAYS[way], exact=True, answers=answers)
    for one, its in zip(done, wanted, strict=False):
        assert one.token_ids == its.token_ids
        assert one.logprobs == its.logprobs
