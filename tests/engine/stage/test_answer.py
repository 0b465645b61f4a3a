"""A step's answer fetched in one go, as on a GPU: texts, log-probabilities and read-backs of a CPU's."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.stage import artefacts
from engine.step import SequenceStart, Step, Work, WorkResult
from engine.tree import TokenTree
from engine.verify.batch import Verification
from tests.support.engines import make_target
from tests.support.pretended_device import pretended_device

PROMPT = [5, 9, 13, 9, 5, 20, 31]
TREE = TokenTree([9, 20, 5, 13, 31, 9], [-1, -1, 0, 2, 1, 4], probe=[False] * 4 + [True] * 2, probe_ends=[5])
ASKED = [
    (SamplingParams(), Needs()),
    (SamplingParams(temperature=0.8, seed=3, logprobs=2), Needs(node_top_k=4, prompt_top_k=4, top_logprobs=True)),
    (SamplingParams(temperature=1.2, top_p=0.9, top_k=20, min_p=0.01, seed=4), Needs(hidden_layer=1, hidden_dims=8)),
    (SamplingParams(repetition_penalty=1.3, frequency_penalty=0.5, logprobs=0), Needs(probe_top_k=3, heads=((1, 2),))),
    (SamplingParams(temperature=0.7, verification="rejection", seed=5), Needs(node_top_k=4, top_logprobs=True)),
    (SamplingParams(temperature=0.7, logit_bias={7: 4.0, 8: -5.0}, min_tokens=9, stop_ids=(7,)), Needs(prompt_top_k=2)),
]


def answers() -> list[list[WorkResult]]:
    """Two chunks of a prompt and two trees, the same for all sequences."""
    target = make_target("llama", stages=2, n_blocks=64, block_size=4)
    starts = [SequenceStart(i, params, len(PROMPT), needs) for i, (params, needs) in enumerate(ASKED)]

    def step(number: int, first: int, tokens: list[int], tree: TokenTree | None, draw: bool) -> list[WorkResult]:
        new = {0: [0, 1, 2, 3, 4]}.get(number, [])
        works = [
            Work(i, first, tokens, tree, new_blocks=[5 * i + block for block in new], draw=draw, max_new=40)
            for i in range(len(ASKED))
        ]
        return target.step(Step(number, works, starts if number == 0 else [])).results

    n = len(PROMPT)
    return [
        step(0, 0, PROMPT[:4], None, False),
        step(1, 4, PROMPT[4:], None, True),
        step(2, n, [9], TREE, True),
        step(3, n, [20], TREE, True),
    ]


def test_what_a_device_answers_in_one_go_is_what_a_cpu_answers() -> None:
    told = []
    for context in (nullcontext(), pretended_device()):
        with context:
            told.append([_plain(result) for results in answers() for result in results])
    assert told[0] == told[1]
    kinds = [kind for kind in told[0][len(ASKED) * 2 + 3] if kind]
    assert len(kinds) > 4, "tokens, log-probabilities, probes and attention were answered"


def test_many_states_are_fetched_when_it_is_known_which_count(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[int] = []

    def fetch_rows(states: torch.Tensor, rows: list[int]) -> Any:
        fetched.append(len(rows))
        return original(states, rows)

    wanted = [[_plain(result) for result in results] for results in answers()]
    original = artefacts._fetch_rows
    monkeypatch.setattr(artefacts, "LITTLE", 0)
    monkeypatch.setattr(artefacts, "_fetch_rows", fetch_rows)
    with pretended_device():
        assert [[_plain(result) for result in results] for results in answers()] == wanted
    (listening,) = (i for i, (_, needs) in enumerate(ASKED) if needs.hidden_layer is not None)
    assert fetched == [len(results[listening][-2]) for results in wanted]


def test_a_step_that_teaches_nobody_reads_nothing_back_behind_nodes() -> None:
    needs = Needs(node_top_k=4, top_logprobs=True, hidden_layer=1)
    told = []
    for reads_back in (True, False):
        target = make_target("llama", n_blocks=16, block_size=4)
        start = SequenceStart(0, SamplingParams(), len(PROMPT), needs)
        target.step(Step(0, [Work(0, 0, PROMPT, new_blocks=[0, 1, 2, 3, 4])], [start]))
        told += target.step(Step(1, [Work(0, len(PROMPT), [9], TREE, max_new=40, reads_back=reads_back)])).results
    asked, rested = told
    assert (asked.tokens, asked.accepted) == (rested.tokens, rested.accepted)
    assert len(asked.top_ids) == len(TREE) + 1
    assert len(rested.top_ids) == 0
    assert np.array_equal(asked.hidden, rested.hidden), "states are a sequence: none may be missing"  # type: ignore[arg-type]


def test_a_step_is_fetched_once(monkeypatch: Any) -> None:
    """Whatever it reads back; the rejection rule alone decides level by level."""
    from engine.stage import answer

    fetched: list[int] = []

    def fetch(tensors: list[torch.Tensor]) -> list[Any]:
        fetched.append(len(tensors))
        return [tensor.numpy() for tensor in tensors]

    monkeypatch.setattr(answer, "fetch", fetch)
    with pretended_device():
        answers()
    assert len(fetched) == 4
    assert min(fetched) > 1


def test_logits_do_not_live_until_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    holders: list[weakref.ref[Verification]] = []

    def begin(self: Verification, logits: torch.Tensor) -> list[torch.Tensor]:
        holders.append(weakref.ref(self))
        return original(self, logits)

    original = Verification.begin
    monkeypatch.setattr(Verification, "begin", begin)
    target = make_target("llama", n_blocks=16, block_size=4)
    start = SequenceStart(0, SamplingParams(temperature=0.5, verification="rejection"), len(PROMPT), Needs())
    target.step(Step(0, [Work(0, 0, PROMPT, new_blocks=[0, 1, 2, 3, 4])], [start]))
    assert [holder() for holder in holders] == [None]


def _plain(result: WorkResult) -> tuple[Any, ...]:
    """A result as something that compares by value."""
    arrays = (result.prompt_top_ids, result.prompt_top_logprobs, result.hidden, result.attention)
    top = result.top_ids
    logprobs = None if top.logprobs is None else top.logprobs.tolist()
    return (
        result.tokens,
        result.accepted,
        result.logprobs,
        top.nodes.tolist(),
        top.ids.tolist(),
        logprobs,
        *(None if array is None else np.asarray(array).tolist() for array in arrays),
    )
