"""PLD+ on a tiny model: the paper's equations on the states of transformers, and on any number of stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from engine.loop import Engine
from engine.protocol import Branch, Outcome, RequestView, Speculator
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target.local import LocalTarget
from engine.target.options import TargetOptions
from speculators.pld_plus.speculator import PldPlusConfig
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions, create

HEADS = ((0, 1), (1, 3), (2, 0), (3, 2))  # every layer, so every stage has some
LAYER = 1
METHODS = ("pld-plus-h", "pld-plus-a")

Drafted = list[tuple[list[int], list[list[int]]]]  # context, drafts after it


class Recording:
    """Records the drafts of another speculator."""

    def __init__(self, inner: Speculator) -> None:
        self.inner = inner
        self.name, self.needs = inner.name, inner.needs
        self.drafted: dict[int, Drafted] = {}

    def begin(self, request: RequestView) -> None:
        self.drafted[request.request_id] = []
        self.inner.begin(request)

    def propose(self, request: RequestView, budget: int) -> list[Branch]:
        branches = self.inner.propose(request, budget)
        found = [list(branch.tokens) for branch in branches]
        self.drafted[request.request_id].append((request.context.view.tolist(), found))
        return branches

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        self.inner.observe(request, outcome)

    def end(self, request: RequestView) -> None:
        self.inner.end(request)


def prompts() -> list[list[int]]:
    """Texts of few different tokens: every token occurs several times, in several contexts."""
    texts = []
    for seed in range(3):
        chance = Random(seed)
        words = [[chance.randrange(3, 300) for _ in range(4)] for _ in range(5)]
        texts.append([1, *(token for _ in range(12) for token in chance.choice(words)[: chance.randrange(1, 5)])])
    return texts


@pytest.fixture(scope="module")
def run(tiny_checkpoint: Path) -> Callable[..., tuple[list[list[int]], list[Drafted]]]:
    """Texts and drafts of all prompts, on so many stages."""

    @lru_cache
    def target(stages: int) -> LocalTarget:
        options = TargetOptions(str(tiny_checkpoint), stages=stages, kv_bytes=8 << 20, block_size=16)
        return LocalTarget.load(options, tiny_checkpoint)

    def go(method: str, stages: int = 1, **config: Any) -> tuple[list[list[int]], list[Drafted]]:
        options = SpeculatorOptions(pld_plus=replace(PldPlusConfig.paper(LAYER, HEADS), **config))
        recording = Recording(create(method, options))
        pool = SpeculatorPool(extra={"recorded": lambda _: recording})
        engine = Engine(target(stages), pool, SchedulerOptions(prefill_chunk=20))
        # Flat enough to wander, so that contexts differ, and biased towards the prompt's tokens, so that some repeat.
        texts = prompts()
        params = [
            SamplingParams(max_tokens=30, temperature=1.0, seed=i, logit_bias=dict.fromkeys(set(text), 12.0))
            for i, text in enumerate(texts)
        ]
        jobs = [Request(text, one, "recorded", 24) for text, one in zip(texts, params, strict=True)]
        done = dict(engine.run(jobs, 2))
        return [done[i].token_ids for i in range(len(texts))], [recording.drafted[i] for i in range(len(texts))]

    return go


@pytest.fixture(scope="module")
def huggingface(tiny_checkpoint: Path) -> Callable[[list[int]], Any]:
    """Hidden states and attention of every layer for a text, by transformers."""
    model = LlamaForCausalLM.from_pretrained(tiny_checkpoint, attn_implementation="eager").eval()

    def forward(text: list[int]) -> Any:
        with torch.inference_mode():
            return model(torch.tensor([text]), output_hidden_states=True, output_attentions=True)

    return forward


def similarities(method: str, x: list[int], out: Any) -> dict[int, float]:
    """For every occurrence, what equation 2 or 3 maximises."""
    t = len(x)
    found = [j for j in range(1, t - 1) if x[j] == x[t - 1]]
    if method == "pld-plus-a":
        return {j: max(float(out.attentions[layer][0, head, t - 2, j]) for layer, head in HEADS) for j in found}
    states = out.hidden_states[LAYER + 1][0]  # the first entry is the embedding
    return {j: float(torch.cosine_similarity(states[j - 1], states[t - 2], dim=0)) for j in found}


@pytest.mark.parametrize("method", METHODS)
def test_every_step_drafts_from_the_papers_occurrence(method: str, run: Any, huggingface: Any) -> None:
    _, drafted = run(method)
    n_choices = 0
    for steps in drafted:
        assert len(steps) > 5
        out = huggingface(steps[-1][0])
        for x, found in steps:
            likely = similarities(method, x, out)  # causal: states of a prefix are those of the whole text
            best = max(likely, key=lambda j: likely[j], default=None)
            assert found == ([] if best is None else [x[best + 1 : best + 25]])
            n_choices += len({x[j + 1] for j in likely}) > 1
    assert n_choices > 10  # steps where another occurrence would have meant another draft


@pytest.mark.parametrize("method", METHODS)
def test_stages_change_no_draft(method: str, run: Any) -> None:
    assert run(method, 3) == run(method)
    assert run(method, 2, max_branches=4) == run(method, max_branches=4)
