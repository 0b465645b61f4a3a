"""Hugging Face's greedy text, token for token, from every pipeline, by every method, in any company.

PLD+ reads states of a layer, and attention rows of heads, on middle stages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from deployments.router.drafting import InlineDraftClient
from engine.grammar.grammar import Grammar, Thought
from engine.request import Request
from engine.step_cost import StepCosts
from engine.target_model.info import TargetInfo
from retrieval_store.index.index import FixedLibrary
from retrieval_store.index.memory import MemoryIndex
from speculators.draft_model.config import DraftModelConfig
from speculators.grammar import GrammarConfig
from speculators.method import SpeculatorOptions
from speculators.peers.adapld import AdaPldConfig
from speculators.pld_plus.speculator import PldPlusConfig
from speculators.pool import SpeculatorPool
from tests.deployments.conftest import ServedPipelines, Serving, job_of
from tests.support.grammars import PERSON, of_regex, of_schema
from tests.support.methods import AVAILABLE, TRAINED
from tests.support.submission import check_figures

METHODS = (*(name for name in AVAILABLE if name not in TRAINED), "suffix+token-recycling", "pld-plus-a+pld-plus-h")
DRAFTS_LITTLE = {"autoregressive", "grammar", "prediction"}  # nothing, here
EOS = 2
N_TOKENS = 20
BATCH = 3
# Of four layers: with four stages every one of these is in the middle or at the end, with two on either.
PLD_PLUS = PldPlusConfig(layer=1, dims=16, heads=((1, 1), (2, 0), (1, 3)))
# Steps of more nodes cost hardly more, so that ``auto`` drafts.
COSTS = StepCosts({1: ((1, 65), (1.0, 1.2)), 8: ((8, 128), (1.2, 1.5))})

GRAMMARS = (
    of_schema(PERSON),
    of_schema(PERSON, whitespace=False),
    of_regex("(fox|dog)(, (fox|dog)){2,5}"),
    Grammar(of_schema(PERSON).source, of_regex("(fox|dog){3}").source, Thought("e", "{")),
)
Generate = Callable[[Request], list[int]]


@pytest.fixture(scope="module")
def generate(tiny_checkpoint: Path) -> Generate:
    """Runs ``model.generate`` once for each prompt."""
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_checkpoint, dtype=torch.float32).eval()
    known: dict[tuple[int, ...], list[int]] = {}

    def run(job: Request) -> list[int]:
        key = tuple(job.prompt)
        if key not in known:
            ids = torch.tensor([job.prompt])
            with torch.inference_mode():
                out = model.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=N_TOKENS, do_sample=False, eos_token_id=EOS
                )
            known[key] = out[0, ids.shape[1] :].tolist()
        return known[key]

    return run


@pytest.fixture
def draft_client(tiny_checkpoint: Path, info: TargetInfo, generate: Generate) -> InlineDraftClient:
    """Every method with its input: a corpus of right texts, a draft model that is the target itself, costs."""
    corpus = [[*job.prompt, *generate(job)] for job in (job_of(number) for number in range(2))]
    options = SpeculatorOptions(
        settings=(PLD_PLUS, AdaPldConfig(dims=16), DraftModelConfig(draft_tokens=3, block_size=16, kv_gib=0.01)),
        layer=1,
        heads=PLD_PLUS.heads,
        draft_model=str(tiny_checkpoint),
        retrieval=lambda: FixedLibrary(MemoryIndex(corpus)),
        grammar=GrammarConfig(str(tiny_checkpoint), None, (EOS,), info.spec.vocab_size),
        step_costs=COSTS,
    )
    return InlineDraftClient(SpeculatorPool(options), info.spec.vocab_size)


async def compare(served: ServedPipelines, jobs: list[Request], wanted: Generate) -> int:
    """Run jobs together and compare their texts; returns the number of drafted tokens."""
    answers = [served.begin(job) for job in jobs]
    for answer in answers:
        assert (await answer).token_ids == wanted(answer.job), answer.job.method
    return sum(answer.stats.drafted_tokens for answer in answers)


@pytest.mark.parametrize(
    ("n_stages", "n_ranks"),
    [
        pytest.param(1, 1, marks=pytest.mark.matrix),
        (4, 1),
        (2, 2),
        pytest.param(1, 4, marks=pytest.mark.matrix),
    ],
)
async def test_every_method_alone_and_in_company_writes_the_text_of_generate(
    n_stages: int, n_ranks: int, serving: Serving, draft_client: InlineDraftClient, generate: Generate
) -> None:
    async with serving(n_stages, n_ranks=n_ranks, draft_client=draft_client, prefill_chunk=8) as served:
        for method in METHODS:
            jobs = [job_of(number, method, max_tokens=N_TOKENS) for number in range(BATCH)]
            drafted = await compare(served, jobs[:1], generate)
            drafted += await compare(served, jobs, generate)
            assert (drafted > 0) == (method not in DRAFTS_LITTLE), method
        mixed = [job_of(number, METHODS[number % len(METHODS)], max_tokens=N_TOKENS) for number in range(len(METHODS))]
        await compare(served, mixed, generate)


@pytest.mark.parametrize(
    ("n_stages", "n_ranks", "sampling"),
    [
        pytest.param(1, 1, {"temperature": 0.9, "top_p": 0.95}, marks=pytest.mark.matrix),
        (2, 1, {"temperature": 1.0, "repetition_penalty": 1.2, "presence_penalty": 0.3, "min_tokens": 5}),
        (4, 1, {"temperature": 0.9, "top_p": 0.95}),
        (2, 2, {"temperature": 0.9, "top_p": 0.95}),
        pytest.param(2, 4, {"temperature": 1.0, "repetition_penalty": 1.2}, marks=pytest.mark.matrix),
    ],
)
async def test_a_seed_gives_the_same_text_on_any_number_of_stages_and_ranks(
    n_stages: int, n_ranks: int, sampling: dict[str, Any], serving: Serving, draft_client: InlineDraftClient
) -> None:
    jobs = [job_of(n, method, max_tokens=N_TOKENS, **sampling) for n, method in enumerate(METHODS)]
    jobs += [job_of(n, METHODS[n], n_prompt=40 * n, max_tokens=N_TOKENS, **sampling) for n in range(2, 5)]
    masked = ("autoregressive", "grammar", "pld", "suffix+grammar", "auto")
    jobs += [job_of(n, masked[n % 5], grammar=GRAMMARS[n % 4], max_tokens=50, **sampling) for n in range(10)]
    async with serving(n_stages, n_ranks=n_ranks, draft_client=draft_client, prefill_chunk=16) as served:
        for answer in await served.check(*jobs):
            check_figures(answer.events, len(answer.job.prompt))
            assert answer.events[0].drafts is None  # the prefill's event
