"""Outputs, read-backs and log-probabilities of the executor are those of a CPU, whatever they are scored with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from engine.cuda import graphs
from engine.loop import Completion
from engine.protocol import Needs
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.step import SequenceStart, Step, Work, WorkResult
from engine.target_model.local import LocalTarget
from engine.tree import TokenTree
from speculators.registry import Factory
from speculators.testing import RightAmongWrong
from tests.engine.cuda.call_again import CallAgain, call_again
from tests.engine.cuda.small_targets import small_model, small_target
from tests.support.engines import complete_all, make_engine
from tests.support.grammars import letters, of_regex

PROMPT = [5, 9, 13, 9, 5]
END = 26  # the first ids are letters of a grammar; the model's own end is a "c"
TREE = TokenTree([9, 20, 5], [-1, -1, 0], probe=[False, False, True], probe_ends=[2])
ASKED = [
    (SamplingParams(prompt_logprobs=2), Needs(hidden_layer=0, heads=((1, 1),))),
    (SamplingParams(temperature=0.8, seed=3, logprobs=2), Needs(node_top_k=9, prompt_top_k=9, top_logprobs=True)),
    (SamplingParams(temperature=1.5, top_p=0.9, top_k=20, min_p=0.01, seed=4), Needs(prompt_top_k=2)),
    (
        SamplingParams(temperature=2.0, seed=5, logprobs=1, stop_ids=(END,), grammar=of_regex("[a-z]{3,40}")),
        Needs(probe_top_k=3),
    ),
    (SamplingParams(), Needs(node_top_k=65)),  # more ids than kernels read back
    # Torch draws for these.
    (
        SamplingParams(frequency_penalty=0.5, logit_bias={7: 4.0}, min_tokens=9, stop_ids=(7,), logprobs=0),
        Needs(probe_top_k=3),
    ),
    (SamplingParams(temperature=0.7, verification="rejection", seed=5), Needs(node_top_k=4, top_logprobs=True)),
]
PLANNED = ASKED[2:4]  # kernels draw for these


def answers(target: LocalTarget, asked: list[tuple[SamplingParams, Needs]]) -> list[list[WorkResult]]:
    """A prompt in two chunks, and a tree."""
    starts = [SequenceStart(i, params, len(PROMPT), needs) for i, (params, needs) in enumerate(asked)]

    def step(number: int, first: int, tokens: list[int], tree: TokenTree | None, draw: bool) -> Any:
        works = [
            Work(
                i,
                first,
                tokens,
                tree,
                new_blocks=[3 * i + block for block in range(3)] if number == 0 else [],
                draw=draw,
                max_new=40,
                logprobs_of=PROMPT[first + 1 : first + 1 + len(tokens)] if start.params.prompt_logprobs else [],
            )
            for i, start in enumerate(starts)
        ]
        return target.step(Step(number, works, starts if number == 0 else [])).results

    n = len(PROMPT)
    return [
        step(0, 0, PROMPT[:3], None, False),
        step(1, 3, PROMPT[3:], None, True),
        step(2, n, [9], TREE, True),
    ]


@pytest.mark.matrix
@pytest.mark.parametrize(("asked", "records"), [(ASKED, False), (PLANNED, True)], ids=["launches", "graphs"])
def test_answers_are_those_of_a_cpu(
    asked: list[tuple[SamplingParams, Needs]], records: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_again(monkeypatch)
    monkeypatch.setattr(graphs, "count_attention_programs", lambda *_: 8)
    grammars = letters(END, 41)
    expected = answers(small_target("llama", exact=False, grammars=grammars), asked)
    found = answers(small_target("llama", grammars=grammars, records=records), asked)
    for theirs, ours in zip(expected, found, strict=True):
        for one, other in zip(theirs, ours, strict=True):
            assert_same(other, one)
    assert (CallAgain.n_replays > 0) == records
    (constrained,) = (i for i, (params, _) in enumerate(asked) if params.grammar is not None)
    assert expected[2][constrained].tokens[0] < END, "the grammar is obeyed"


def assert_same(one: WorkResult, other: WorkResult) -> None:
    """Ids are equal, and numbers nearly."""
    assert (one.tokens, one.accepted, one.error) == (other.tokens, other.accepted, other.error)
    assert one.top_ids.nodes.tolist() == other.top_ids.nodes.tolist()
    assert one.top_ids.ids.tolist() == other.top_ids.ids.tolist()
    for name in ("prompt_top_ids", "prompt_top_logprobs", "hidden", "attention"):
        _near(getattr(one, name), getattr(other, name))
    _near(one.top_ids.logprobs, other.top_ids.logprobs)
    for name in ("logprobs", "prompt_logprobs"):
        ours, cpus = getattr(one, name), getattr(other, name)
        assert (ours is None) == (cpus is None)
        for entry, expected in zip(ours or [], cpus or [], strict=True):
            assert entry.token_id == expected.token_id
            assert [token for token, _ in entry.top] == [token for token, _ in expected.top]
            _near(
                [entry.logprob, *(value for _, value in entry.top)], [expected.logprob, *(v for _, v in expected.top)]
            )


def _near(one: Any, other: Any) -> None:
    assert (one is None) == (other is None)
    if one is not None:
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.matrix
def test_of_equal_logits_the_lowest_id_is_drawn_also_piece_by_piece() -> None:
    found = []
    for exact in (True, False):
        target = small_target("llama", exact=exact, buckets=(1, 2))  # rows of three sequences are too many at once
        head = target._stages[0]._shard.head_module
        with torch.no_grad():
            head.weight[20:40] = head.weight[:20]  # type: ignore[index, operator]
        params = [SamplingParams(), SamplingParams(temperature=1.0, seed=1), SamplingParams(temperature=2.0, top_k=3)]
        starts = [SequenceStart(i, one, 3, Needs()) for i, one in enumerate(params)]
        works = [Work(i, 0, [5 + i, 6, 7], new_blocks=[i]) for i in range(len(params))]
        found.append([result.tokens for result in target.step(Step(0, works, starts)).results])
    assert found[0] == found[1]
    assert found[0][0][0] < 20


N_TOKENS = 6
PROMPTS = [[(7 * i + j * (i + 3)) % 38 + 3 for j in range(13 + 2 * i)] for i in range(5)]
DRAWN: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.9},
    {},
    {"temperature": 1.1, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"grammar": of_regex("[abd-f]{9,30}"), "stop_ids": (2, END)},
)


Answers = dict[tuple[int, ...], list[int]]


@dataclass(frozen=True)
class AnswerVariant:
    batch: int = 1
    chunk: int = 64
    stages: int = 1
    method: str = "autoregressive"
    n: int = 5  # prompts


def run(family: str, way: AnswerVariant, exact: bool, answers: Answers | None = None) -> list[Completion]:
    trees: dict[str, Factory] = {"right-among-wrong": lambda _: RightAmongWrong(answers or {})}
    target = small_target(family, way.stages, exact, letters(END, 41))
    engine = make_engine(target, answers, SchedulerOptions(prefill_chunk=way.chunk), trees)
    requests = [
        Request(prompt, SamplingParams(max_tokens=N_TOKENS, seed=3, logprobs=3, **how), way.method, max_nodes=9)
        for prompt, how in list(zip(PROMPTS, DRAWN, strict=True))[: way.n]
    ]
    return complete_all(engine, requests, way.batch)


@cache
def on_a_cpu(family: str) -> list[Completion]:
    return run(family, AnswerVariant(5), exact=False)


@cache
def in_one_batch(family: str) -> list[Completion]:
    return run(family, AnswerVariant(5), exact=True)


@pytest.mark.matrix
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_outputs_are_those_of_a_cpu_and_greedy_ones_of_generate(family: str) -> None:
    expected = [completion.token_ids for completion in on_a_cpu(family)]
    assert [completion.token_ids for completion in in_one_batch(family)] == expected
    assert max(expected[4]) < 6, "letters of its grammar"
    ids = torch.tensor([PROMPTS[2]])
    model = small_model(family)
    text = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=N_TOKENS, min_new_tokens=N_TOKENS, do_sample=False
    )
    assert text[0, len(PROMPTS[2]) :].tolist() == expected[2]


WAYS = {
    "one by one": AnswerVariant(1, n=2),
    "in chunks of 5, two stages": AnswerVariant(5, 5, 2),
    "with trees": AnswerVariant(5, 64, 1, "right-among-wrong"),
    "with trees, chunks of 5, two stages": AnswerVariant(5, 5, 2, "right-among-wrong"),
}


@pytest.mark.matrix
@pytest.mark.parametrize(("family", "way"), [*(("llama", way) for way in WAYS), ("gemma3", [*WAYS][-1])])
def test_log_probabilities_have_the_same_bits_however_they_are_scored(family: str, way: str) -> None:
    expected = in_one_batch(family)
    answers = {tuple(prompt): one.token_ids for prompt, one in zip(PROMPTS, on_a_cpu(family), strict=True)}
    done = run(family, WAYS[way], exact=True, answers=answers)
    for one, other in zip(done, expected, strict=False):
        assert one.token_ids == other.token_ids
        assert one.logprobs == other.logprobs
