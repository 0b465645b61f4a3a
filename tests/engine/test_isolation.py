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
from speculators.method import SpeculatorOptions
from speculators.ngrams.suffix import SuffixConfig
from speculators.pool import SpeculatorPool
from speculators.registry import warmed
from speculators.successors.token_recycling import TokenRecyclingConfig
from tests.support.engines import complete_all, make_target
from tests.support.methods import STANDALONE
from tests.support.tiny_models import random_prompts

BOTH = "suffix+token-recycling"
JOINED = ("pld+spectra-core", BOTH, f"{BOTH}+spectra-retrieval", f"{BOTH}+rest")
# Earlier requests change the later drafts of these methods.
LEARNING = ("auto", "goose", "stand", "suffix", "token-recycling", "rest", "spectra-retrieval", "spectra", *JOINED)
OTHERS = [pytest.param(method, "mixed", marks=pytest.mark.matrix) for method in STANDALONE if method not in LEARNING]
OPTIONS = {
    "mixed": warmed(SpeculatorOptions()),
    "paper": SpeculatorOptions().with_settings(
        SuffixConfig(mode="paper", shared=True), TokenRecyclingConfig(mode="paper", shared=True)
    ),
}
PROMPTS = [text * 2 for text in random_prompts(2)]


class NamespaceLibrary:
    """A library that learns texts by namespace."""

    def __init__(self) -> None:
        self.texts: dict[str, list[list[int]]] = {}

    def of(self, namespace: str) -> Sequence[Index]:
        return (MemoryIndex(self.texts[namespace]),) if namespace in self.texts else ()


class LearningEngine:
    """An engine whose library learns from the answers to requests that name a namespace."""

    def __init__(self, kind: str) -> None:
        self.library = NamespaceLibrary()
        options = replace(OPTIONS[kind], retrieval=lambda: self.library)
        self.engine = Engine(make_target("qwen3"), SpeculatorPool(options))

    def answer(self, method: str, scope: str, namespace: str = "") -> list[dict[str, Any]]:
        """Everything but times that the answers to the prompts report."""
        params = [SamplingParams(max_tokens=14), SamplingParams(max_tokens=14, temperature=0.7, seed=4)]
        jobs = [Request(text, one, method, 12, scope=scope, namespace=namespace) for text in PROMPTS for one in params]
        done = complete_all(self.engine, jobs, 2)
        if namespace:
            self.library.texts.setdefault(namespace, []).extend(
                [*job.prompt, *one.token_ids] for job, one in zip(jobs, done, strict=True)
            )
        return [_reported(one) for one in done]


def _reported(done: Completion) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(done.stats)
    return {"text": done.token_ids} | {name: value for name, value in fields.items() if "seconds" not in name}


@pytest.mark.parametrize(
    ("method", "kind"),
    [*((method, "mixed") for method in LEARNING), ("suffix", "paper"), ("token-recycling", "paper"), *OTHERS],
)
def test_requests_learn_within_their_scope_and_report_nothing_of_others(method: str, kind: str) -> None:
    alone = LearningEngine(kind).answer(method, "b")
    server = LearningEngine(kind)
    first, second = (server.answer(method, "a", "a") for _ in range(2))
    assert [one["text"] for one in second] == [one["text"] for one in alone]
    assert all(one["cached_tokens"] for one in second), "prefixes are shared within a scope"
    if kind == "mixed" and method in LEARNING:
        assert [one["by_source"] for one in first] != [one["by_source"] for one in second]
    assert server.answer(method, "b") == alone
