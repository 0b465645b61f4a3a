"""What kernels answer to a step: tokens, read-backs and log-probabilities of a CPU, whatever sequences ask for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine.cuda import graphs
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.stage import planned_answer
from engine.stage.answer import StepAnswer
from engine.step import SequenceStart, Step, Work, WorkResult
from engine.target.local import LocalTarget
from engine.tree import TokenTree
from tests.engine.cuda.call_again import CallAgain, call_again
from tests.engine.cuda.small_targets import small_target
from tests.engine.cuda.test_logits import counted
from tests.support.grammars import letters, of_regex

PROMPT = [5, 9, 13, 9, 5]
END = 26  # of the grammar's letters
TREE = TokenTree([9, 20, 5], [-1, -1, 0], probe=[False, False, True], probe_ends=[2])
ASKED = [
    (SamplingParams(prompt_logprobs=2), Needs(hidden_layer=0, heads=((1, 1),))),
    (SamplingParams(temperature=0.8, seed=3, logprobs=2), Needs(node_top_k=9, prompt_top_k=9, top_logprobs=True)),
    (SamplingParams(temperature=1.5, top_p=0.9, top_k=20, min_p=0.01, seed=4), Needs(prompt_top_k=2)),
    (
        SamplingParams(temperature=2.0, seed=5, logprobs=1, stop_ids=(END,), grammar=of_regex("[a-z]{3,40}")),
        Needs(probe_top_k=3),
    ),
    # Torch draws for these.
    (
        SamplingParams(frequency_penalty=0.5, logit_bias={7: 4.0}, min_tokens=9, stop_ids=(7,), logprobs=0),
        Needs(probe_top_k=3),
    ),
    (SamplingParams(temperature=0.7, verification="rejection", seed=5), Needs(node_top_k=4, top_logprobs=True)),
]
PLANNED = ASKED[2:4]


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


@pytest.mark.parametrize(("asked", "records"), [(ASKED, False), (PLANNED, True)], ids=["launches", "graphs"])
def test_answers_are_those_of_a_cpu(
    asked: list[tuple[SamplingParams, Needs]], records: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_again(monkeypatch)
    monkeypatch.setattr(graphs, "PROGRAMS", 8)
    grammars = letters(END, 41)
    wanted = answers(small_target("llama", exact=False, grammars=grammars), asked)
    found = answers(small_target("llama", grammars=grammars, records=records), asked)
    for theirs, ours in zip(wanted, found, strict=True):
        for one, other in zip(theirs, ours, strict=True):
            assert_same(other, one)
    assert CallAgain.n_replays == (7 if records else 0), "layers and rows of every step, and rows of prompts"
    (obeys,) = (i for i, (params, _) in enumerate(asked) if params.grammar is not None)
    assert wanted[2][obeys].tokens[0] < END, "the grammar was obeyed"


def assert_same(one: WorkResult, other: WorkResult) -> None:
    """Ids are equal, numbers nearly so."""
    assert (one.tokens, one.accepted, one.error) == (other.tokens, other.accepted, other.error)
    assert one.top_ids.nodes.tolist() == other.top_ids.nodes.tolist()
    assert one.top_ids.ids.tolist() == other.top_ids.ids.tolist()
    for name in ("prompt_top_ids", "prompt_top_logprobs", "hidden", "attention"):
        _near(getattr(one, name), getattr(other, name))
    _near(one.top_ids.logprobs, other.top_ids.logprobs)
    for name in ("logprobs", "prompt_logprobs"):
        its, others = getattr(one, name), getattr(other, name)
        assert (its is None) == (others is None)
        for entry, wanted in zip(its or [], others or [], strict=True):
            assert entry.token_id == wanted.token_id
            assert [token for token, _ in entry.top] == [token for token, _ in wanted.top]
            _near([entry.logprob, *(value for _, value in entry.top)], [wanted.logprob, *(v for _, v in wanted.top)])


def _near(one: Any, other: Any) -> None:
    assert (one is None) == (other is None)
    if one is not None:
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_launches_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two more for best ids, 19 more where rows are truncated; rows of a prompt are answered apart."""
    monkeypatch.setattr(planned_answer, "PROMPT_ROWS", 4)
    launches = counted(monkeypatch)  # and not run: what is told is of no interest here
    beside = {"_embed": 1, "_rms_norm": 1, "_product": 1}
    drawing = beside | {"_best_chunks": 1, "_draw_chunks": 1, "_pick": 1}
    told = {"_best_in_chunks": 1, "_best_of_chunks": 1}
    truncating = {"_search": 16, "_end_search": 1, "_count_ties": 1, "_floor": 1}
    for params, needs, wanted in (
        (SamplingParams(temperature=0.5), Needs(), drawing),
        (SamplingParams(temperature=0.5, logprobs=3), Needs(), drawing | told),
        (SamplingParams(temperature=0.5, top_k=3), Needs(), drawing | truncating),
        (SamplingParams(min_p=0.5), Needs(), drawing),
    ):
        stage = small_target("llama")._stages[0]
        start = SequenceStart(0, params, 7, needs)
        activations = stage.forward(Step(0, [Work(0, 0, [5] * 7, new_blocks=[0, 1, 2])], [start]), None)
        launches.clear()
        stage.verify(activations)
        of_layers = {"_attend", "_combine", "_rope_write"}
        assert not of_layers & set(launches)
        assert dict(launches) == wanted
    reading = SequenceStart(1, SamplingParams(prompt_logprobs=1), 7, Needs(prompt_top_k=3))
    work = Work(1, 0, [5] * 7, new_blocks=[3, 4, 5], logprobs_of=[5] * 7)
    activations = stage.forward(Step(1, [work], [reading]), None)
    launches.clear()
    (result,) = stage.verify(activations)
    assert len(result.tokens) == 1
    assert launches["_product"] == launches["_embed"] == 3, "two pieces of a prompt, and the row that is drawn from"
    assert launches["_best_in_chunks"] == 2
    assert launches["_best_chunks"] == 1


def test_more_ids_than_kernels_tell_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def results(self: StepAnswer, *given: Any) -> list[WorkResult]:
        made.append(1)
        return original(self, *given)

    original = StepAnswer.results
    monkeypatch.setattr(StepAnswer, "results", results)
    start = SequenceStart(0, SamplingParams(), 2, Needs(node_top_k=65))
    found = [
        target.step(Step(0, [Work(0, 0, [5, 6], new_blocks=[0])], [start])).results[0].tokens
        for target in (small_target("llama"), small_target("llama", exact=False))
    ]
    assert found[0] == found[1]
    assert len(made) == 2


def test_of_equal_logits_the_lowest_id_is_drawn_in_pieces_too() -> None:
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
