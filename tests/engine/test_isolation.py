"""Nothing that a request reports depends on what another scope has sent: prefixes, learnt state, live texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from engine.loop import Completion, Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from retrieval_store.index.index import Index
from retrieval_store.index.memory import MemoryIndex
from speculators.methods import STANDALONE
from speculators.ngrams.suffix import SuffixConfig
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions
from speculators.successors.token_recycling import TokenRecyclingConfig
from tests.support.engines import complete_all, make_target
from tests.support.tiny_models import random_prompts

BOTH = "suffix+token-recycling"
JOINED = ("pld+spectra-core", BOTH, f"{BOTH}+spectra-retrieval", f"{BOTH}+rest+auto")
METHODS = (*STANDALONE, "rest", "spectra-retrieval", *JOINED)
REMEMBER = (
    "auto",
    "goose",
    "stand",
    "suffix",
    "token-recycling",
    *JOINED,
)  # something of earlier requests that changes later drafts
KINDS = {
    "mixed": SpeculatorOptions().warm(),
    "paper": SpeculatorOptions(
        suffix=SuffixConfig(mode="paper", shared=True), token_recycling=TokenRecyclingConfig(mode="paper", shared=True)
    ),
}
PROMPTS = [text * 2 for text in random_prompts(2)]
N_TOKENS = 14


class Shelves:
    """A library that has learnt texts of namespaces."""

    def __init__(self) -> None:
        self.texts: dict[str, list[list[int]]] = {}

    def of(self, namespace: str) -> Sequence[Index]:
        """The shared texts, of which there are none, and the namespace's own."""
        return (MemoryIndex(self.texts[namespace]),) if namespace in self.texts else ()


class Server:
    """An engine whose library learns from the answers to requests that name a namespace."""

    def __init__(self, kind: str) -> None:
        self.shelves = Shelves()
        options = replace(KINDS[kind], retrieval=lambda: self.shelves)
        self.engine = Engine(make_target("qwen3"), SpeculatorPool(options))

    def answer(self, method: str, scope: str, namespace: str = "") -> list[dict[str, Any]]:
        """Everything but times that the answers to the prompts report."""
        params = [SamplingParams(max_tokens=N_TOKENS), SamplingParams(max_tokens=N_TOKENS, temperature=0.7, seed=4)]
        jobs = [Request(text, one, method, 12, scope=scope, namespace=namespace) for text in PROMPTS for one in params]
        done = complete_all(self.engine, jobs, 2)
        if namespace:
            self.shelves.texts.setdefault(namespace, []).extend(
                [*job.prompt, *one.token_ids] for job, one in zip(jobs, done, strict=True)
            )
        return [_reported(one) for one in done]


def _reported(done: Completion) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(done.stats)
    return {"text": done.token_ids} | {name: value for name, value in fields.items() if "seconds" not in name}


@pytest.mark.parametrize(
    ("method", "kind"), [*((method, "mixed") for method in METHODS), ("suffix", "paper"), ("token-recycling", "paper")]
)
def test_a_request_reports_the_same_whatever_another_scope_has_sent(method: str, kind: str) -> None:
    alone = Server(kind).answer(method, "b")
    server = Server(kind)
    for _ in range(2):
        taught = server.answer(method, "a", "a")
    assert [one["text"] for one in taught] == [one["text"] for one in alone]
    assert all(one["cached_tokens"] for one in taught), "within a scope prefixes are shared"
    assert server.answer(method, "b") == alone
    assert all(one["cached_tokens"] for one in server.answer(method, "b"))


@pytest.mark.parametrize("method", [*REMEMBER, "rest", "spectra-retrieval", "spectra"])
def test_within_a_scope_and_namespace_requests_do_learn_from_each_other(method: str) -> None:
    """So the test above compares what could differ."""
    server = Server("mixed")
    first, second = ([one["by_source"] for one in server.answer(method, "a", "a")] for _ in range(2))
    assert first != second
