"""Hugging Face's greedy text, token for token, from every pipeline, by every method, in any company.

A stage here is a real ``StageWorker``; what PLD+ reads (a layer's states, heads' attention rows) lies on middle stages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from deployments.router.draft_client import InlineDraftClient
from engine.loop import Completion
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.step_cost import StepCosts
from engine.target.info import TargetInfo
from retrieval_store.index.index import FixedLibrary
from retrieval_store.index.memory import MemoryIndex
from speculators.draft_model.config import DraftModelConfig
from speculators.grammar import GrammarConfig
from speculators.methods import AVAILABLE, TRAINED
from speculators.peers.adapld import AdaPldConfig
from speculators.pld_plus.speculator import PldPlusConfig
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions

METHODS = (*(name for name in AVAILABLE if name not in TRAINED), "suffix+token-recycling", "pld-plus-a+pld-plus-h")
DRAFTS_LITTLE = {"autoregressive", "grammar", "prediction"}  # nothing, here
EOS = 2
N_TOKENS = 20
BATCH = 4
# Of four layers: with four stages every one of these is in the middle or at the end, with two on either.
PLD_PLUS = PldPlusConfig(layer=1, dims=16, heads=((1, 1), (2, 0), (1, 3)))
# Steps of more nodes cost hardly more, so that ``auto`` drafts.
COSTS = StepCosts({1: ((1, 65), (1.0, 1.2)), 8: ((8, 128), (1.2, 1.5))})

MakeJob = Callable[..., Request]
Generate = Callable[[Request], list[int]]


@pytest.fixture(scope="module")
def generate(tiny_checkpoint: Path) -> Generate:
    """What ``model.generate`` writes behind a job's prompt; each prompt is run once."""
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
def draft_client(
    tiny_checkpoint: Path, info: TargetInfo, make_job: MakeJob, generate: Generate
) -> Callable[[], InlineDraftClient]:
    """Every method with its input: a corpus of right texts, a draft model that is the target itself, costs."""
    corpus = [[*job.prompt, *generate(job)] for job in (make_job(number) for number in range(2))]
    options = SpeculatorOptions(
        pld_plus=PLD_PLUS,
        adapld=AdaPldConfig(layer=1, dims=16),
        draft_model=DraftModelConfig(str(tiny_checkpoint), draft_tokens=3, block_size=16, kv_gib=0.01),
        retrieval=lambda: FixedLibrary(MemoryIndex(corpus)),
        grammar=GrammarConfig(str(tiny_checkpoint), None, (EOS,), info.spec.vocab_size),
        step_costs=COSTS,
    )
    return lambda: InlineDraftClient(SpeculatorPool(options), info.spec.vocab_size)


async def compare(served: Any, jobs: list[Request], wanted: Callable[[Request], list[int]]) -> int:
    """Run jobs together, compare their texts; returns how many tokens were drafted."""
    answers = await asyncio.gather(*(served.answer(job) for job in jobs))
    for job, answer in zip(jobs, answers, strict=True):
        assert answer.token_ids == wanted(job), job.method
    return sum(int(answer.events[-1].stats.drafted_tokens) for answer in answers)


@pytest.mark.parametrize("n_stages", [1, 2, 4])
async def test_every_method_alone_and_in_company_writes_what_generate_writes(
    n_stages: int, serving: Any, draft_client: Callable[[], InlineDraftClient], make_job: MakeJob, generate: Generate
) -> None:
    async with serving(n_stages, draft_client=draft_client(), prefill_chunk=8) as served:
        for method in METHODS:
            jobs = [make_job(number, method, max_tokens=N_TOKENS) for number in range(BATCH)]
            drafted = await compare(served, jobs[:1], generate)
            drafted += await compare(served, jobs, generate)
            assert (drafted > 0) == (method not in DRAFTS_LITTLE), method
        mixed = [make_job(number, METHODS[number % len(METHODS)], max_tokens=N_TOKENS) for number in range(20)]
        await compare(served, mixed, generate)
        await served.settled()


@pytest.mark.parametrize("n_stages", [1, 2, 4])
async def test_a_seed_gives_the_same_text_on_any_number_of_stages(
    n_stages: int,
    serving: Any,
    draft_client: Callable[[], InlineDraftClient],
    make_job: MakeJob,
    offline: Callable[[Request], Completion],
) -> None:
    sampling: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "max_tokens": N_TOKENS}
    jobs = [make_job(number, method, **sampling) for number, method in enumerate(METHODS)]
    async with serving(n_stages, draft_client=draft_client()) as served:
        assert await compare(served, jobs, lambda job: offline(job).token_ids) > 0
        await served.settled()


@pytest.mark.parametrize("n_stages", [2, 4])
async def test_links_of_torch_distributed_carry_the_same_texts(
    n_stages: int, serving: Any, draft_client: Callable[[], InlineDraftClient], make_job: MakeJob, generate: Generate
) -> None:
    async with serving(n_stages, draft_client=draft_client(), transport="gloo") as served:
        for method in ("autoregressive", "spectra-core", "pld-plus-a+pld-plus-h", "suffix+token-recycling"):
            jobs = [make_job(number, method, max_tokens=N_TOKENS) for number in range(BATCH)]
            await compare(served, jobs[:1], generate)
            await compare(served, jobs, generate)
        assert {worker._next.kind for worker in served.stages.workers[:-1]} == {"gloo"}
        await served.settled()


async def test_a_bias_that_repeats_the_prompt_is_drafted_from_states_of_a_middle_stage(
    serving: Any, draft_client: Callable[[], InlineDraftClient], offline: Callable[[Request], Completion]
) -> None:
    prompt = [1, *(3 + i * i % 7 for i in range(30))]
    params = SamplingParams(max_tokens=N_TOKENS, logit_bias=dict.fromkeys(set(prompt), 12.0))
    async with serving(4, draft_client=draft_client()) as served:
        for method in ("pld-plus-h", "pld-plus-a"):
            job = Request(prompt, params, method, 16)
            answer = await served.answer(job)
            assert answer.token_ids == offline(job).token_ids
            assert answer.events[-1].stats.by_source[method].accepted > 0
