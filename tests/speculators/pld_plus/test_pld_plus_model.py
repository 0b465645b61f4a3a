"""PLD+ on a tiny model: the paper's equations on the states of transformers, and on any number of stages."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from engine.loop import Engine
from engine.protocol import Branch, RequestView, Speculator
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from speculators.method import SpeculatorOptions
from speculators.pld_plus.speculator import PldPlusConfig
from speculators.pool import SpeculatorPool
from speculators.registry import create

HEADS = ((0, 1), (1, 3), (2, 0), (3, 2))  # every layer, so every stage has some
LAYER = 1

Drafted = list[tuple[list[int], list[list[int]]]]  # context, drafts after it


def record_drafts(speculator: Speculator) -> dict[int, Drafted]:
    """Return a dictionary that records the drafts of each request from now on."""
    drafted: dict[int, Drafted] = defaultdict(list)
    propose = speculator.propose

    def recorded(request: RequestView, budget: int) -> list[Branch]:
        branches = propose(request, budget)
        drafted[request.request_id].append((request.context.view.tolist(), [list(b.tokens) for b in branches]))
        return branches

    speculator.propose = recorded  # type: ignore[method-assign]
    return drafted


def prompts() -> list[list[int]]:
    """Return texts in which every token occurs several times, in several contexts."""
    texts = []
    for seed in range(3):
        chance = Random(seed)
        words = [[chance.randrange(3, 300) for _ in range(4)] for _ in range(5)]
        texts.append([1, *(token for _ in range(12) for token in chance.choice(words)[: chance.randrange(1, 5)])])
    return texts


def run(checkpoint: Path, method: str, stages: int) -> list[Drafted]:
    """Return the drafts of all prompts."""
    options = TargetOptions(str(checkpoint), stages=stages, kv_bytes=8 << 20, block_size=16)
    speculator = create(
        method, SpeculatorOptions(layer=LAYER, heads=HEADS).with_settings(PldPlusConfig.paper(LAYER, HEADS))
    )
    drafted = record_drafts(speculator)
    pool = SpeculatorPool(extra={"recorded": lambda _: speculator})
    engine = Engine(LocalTarget.load(options, checkpoint), pool, SchedulerOptions(prefill_chunk=20))
    # Flat enough to wander, so that contexts differ, and biased towards the prompt's tokens, so that some repeat.
    jobs = [
        Request(
            text,
            SamplingParams(max_tokens=30, temperature=1.0, seed=seed, logit_bias=dict.fromkeys(set(text), 12.0)),
            "recorded",
            24,
        )
        for seed, text in enumerate(prompts())
    ]
    list(engine.run(jobs, 2))
    return list(drafted.values())


def similarities(method: str, x: list[int], out: Any) -> dict[int, float]:
    """Return for every occurrence the value that equation 2 or 3 maximises."""
    t = len(x)
    found = [j for j in range(1, t - 1) if x[j] == x[t - 1]]
    if method == "pld-plus-a":
        return {j: max(float(out.attentions[layer][0, head, t - 2, j]) for layer, head in HEADS) for j in found}
    states = out.hidden_states[LAYER + 1][0]  # the first entry is the embedding
    return {j: float(torch.cosine_similarity(states[j - 1], states[t - 2], dim=0)) for j in found}


@pytest.mark.parametrize(("method", "stages"), [("pld-plus-h", 1), ("pld-plus-h", 3), ("pld-plus-a", 2)])
def test_every_step_drafts_from_the_papers_occurrence(method: str, stages: int, tiny_checkpoint: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(tiny_checkpoint, attn_implementation="eager").eval()
    n_choices = 0
    for steps in run(tiny_checkpoint, method, stages):
        assert len(steps) > 5
        with torch.inference_mode():
            out = model(torch.tensor([steps[-1][0]]), output_hidden_states=True, output_attentions=True)
        for x, found in steps:
            likely = similarities(method, x, out)  # causal: states of a prefix are those of the whole text
            best = max(likely, key=lambda j: likely[j], default=None)
            assert found == ([] if best is None else [x[best + 1 : best + 25]])
            n_choices += len({x[j + 1] for j in likely}) > 1
    assert n_choices > 10  # steps where another occurrence would have meant another draft
