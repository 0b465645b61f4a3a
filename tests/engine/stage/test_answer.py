"""A step's answer fetched at once, as on a GPU, equals a CPU's: tokens, log-probabilities and read-backs."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch

from engine.protocol import Needs
from engine.sampling.logprobs import LONG_ROW, top_ids
from engine.sampling.params import SamplingParams
from engine.stage import answer, artefacts
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


@pytest.mark.parametrize("little", [artefacts.EAGER_FETCH, 0], ids=["few states", "many states"])
def test_an_answer_from_a_device_is_that_of_a_cpu_and_is_fetched_once(
    little: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [[_plain(result) for result in results] for results in answers()]
    kinds = [kind for kind in expected[2][3] if kind]
    assert len(kinds) > 4, "tokens, log-probabilities, probes and attention were answered"
    fetched: list[int] = []
    monkeypatch.setattr(answer, "fetch", lambda tensors: fetched.append(1) or [tensor.numpy() for tensor in tensors])
    monkeypatch.setattr(artefacts, "EAGER_FETCH", little)
    with pretended_device():
        assert [[_plain(result) for result in results] for results in answers()] == expected
    assert len(fetched) == len(expected)


def test_a_step_that_teaches_no_speculator_reads_back_no_ids_of_nodes() -> None:
    needs = Needs(node_top_k=4, top_logprobs=True, hidden_layer=1)
    results = []
    for reads_back in (True, False):
        target = make_target("llama", n_blocks=16, block_size=4)
        start = SequenceStart(0, SamplingParams(), len(PROMPT), needs)
        target.step(Step(0, [Work(0, 0, PROMPT, new_blocks=[0, 1, 2, 3, 4])], [start]))
        results += target.step(Step(1, [Work(0, len(PROMPT), [9], TREE, max_new=40, reads_back=reads_back)])).results
    asked, rested = results
    assert (asked.tokens, asked.accepted) == (rested.tokens, rested.accepted)
    assert len(asked.top_ids) == len(TREE) + 1
    assert len(rested.top_ids) == 0
    assert np.array_equal(asked.hidden, rested.hidden), "states are a sequence: none may be missing"  # type: ignore[arg-type]


def test_logits_are_freed_before_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(("vocab", "n_rows"), [(16, 9), (300, 1), (LONG_ROW - 1, 2), (LONG_ROW, 1), (LONG_ROW + 37, 9)])
def test_top_ids_and_log_probabilities_are_those_of_a_sort(vocab: int, n_rows: int) -> None:
    """Rows of any length, without equal logits, whose order is open."""
    torch.manual_seed(vocab)
    logits = torch.stack([torch.randperm(vocab).float() for _ in range(n_rows)]) / vocab * 30.0
    ids, logprobs = top_ids(logits, 16, with_logprobs=True)
    expected = logits.sort(dim=-1, descending=True).indices[:, :16]
    assert torch.equal(ids, expected.int())
    assert torch.allclose(logprobs, logits.double().log_softmax(-1).gather(-1, expected).float(), atol=1e-4)
    assert torch.equal(top_ids(logits, 16, with_logprobs=False)[0], ids)


def _plain(result: WorkResult) -> tuple[Any, ...]:
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
