"""The number of reasoning tokens is a property of the tokens, however steps cut them."""

from __future__ import annotations

import copy
from itertools import pairwise, product
from typing import Any

import pytest
from tokenizers import AddedToken

from app.api.choice import CompletionChoice
from app.api.tools.parts import AnswerForm
from deployments.submission.messages import ModelCard
from engine.events import StepEvent
from engine.request import Request
from engine.sampling.params import SamplingParams
from tests.support.tiny_models import tiny_tokenizer

TOKENIZER = copy.deepcopy(tiny_tokenizer())
TOKENIZER.add_tokens([AddedToken(mark, normalized=False) for mark in ("<think>", "</think>")])
EOS = 2


def ids_of(*parts: str) -> list[int]:
    """Tokens of parts that are encoded by themselves."""
    vocabulary = TOKENIZER.backend_tokenizer
    return [token for part in parts for token in vocabulary.encode(part, add_special_tokens=False).ids]


def count(steps: list[list[int]], finish: str | None, **params: Any) -> tuple[int, int]:
    """Tokens of an answer, and how many of them are reasoning."""
    shown = frozenset(ids_of("<think>", "</think>"))
    form = AnswerForm(has_reasoning=True, shown=shown)
    card = ModelCard(
        name="tiny", method="auto", max_nodes=64, max_model_len=400, vocab_size=len(TOKENIZER), eos_ids=(EOS,)
    )
    choice = CompletionChoice(0, Request([1], SamplingParams(max_tokens=50, **params)), TOKENIZER, card, form)
    for step, following in pairwise([*steps, None]):
        choice.feed(StepEvent(token_ids=step or [], finish_reason=None if following else finish))
        if choice.finish_reason is not None:
            break
    return choice.n_tokens, choice.n_reasoning


THOUGHT = ids_of("\n", "<think>", "a", "b", "</think>", "c")
TEXTS: list[tuple[list[int], int]] = [
    (THOUGHT, 4),
    (ids_of("\n", "a", "</think>", "a"), 0),
    (ids_of("\n", "</think>", "a"), 0),
    (ids_of("<think>", "</think>", "</think>"), 2),
    (ids_of("<think>", "a", "é", "</think>", "\n"), 3 + len(ids_of("é"))),
    (ids_of("a", "<think>", "</think>"), 0),
    (ids_of("<think>", "a", "b"), 3),
    (ids_of("<thi", "nk>", "</think>", "c"), 2),
    (ids_of("<think>", "</thi", "nk>", "c"), 1 + len(ids_of("</thi", "nk>"))),
]


@pytest.mark.parametrize(("tokens", "expected"), TEXTS)
@pytest.mark.parametrize(("finish", "params"), [("length", {}), ("length", {"logprobs": 0}), ("stop", {}), (None, {})])
def test_every_cut_into_steps_gives_the_same_count(
    tokens: list[int], expected: int, finish: str | None, params: dict[str, Any]
) -> None:
    tokens = [*tokens, EOS] if finish == "stop" else tokens
    found = {count(steps, finish, **params) for steps in cuts(tokens)}
    assert found == {(len(tokens), expected)}


def test_tokens_after_a_stop_string_do_not_count() -> None:
    assert {count(steps, None, stop=("a",)) for steps in cuts(THOUGHT)} == {(3, 2)}


def cuts(tokens: list[int]) -> list[list[list[int]]]:
    """Every way to cut tokens into steps."""
    found = []
    for is_cut in product((False, True), repeat=len(tokens) - 1):
        edges = [0, *(place + 1 for place, cut in enumerate(is_cut) if cut), len(tokens)]
        found.append([tokens[first:end] for first, end in pairwise(edges)])
    return found
