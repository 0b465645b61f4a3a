"""Greedy fp32 text equals Hugging Face ``generate`` token for token, whatever drafts, batches, chunks or stages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.events import LENGTH, STOP
from engine.loop import Completion, Engine, Job
from engine.sampling.params import SamplingParams
from engine.scheduler import SchedulerOptions
from engine.target import LocalTarget, TargetOptions

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
METHODS = ("autoregressive", "pld", "spectra-core", "always-wrong", "always-right")
EOS = 2
N_TOKENS = 24

MakeTarget = Callable[..., LocalTarget]
MakeEngine = Callable[..., Engine]
Prompts = Callable[..., list[list[int]]]
Generate = Callable[..., list[int]]


def run(engine: Engine, jobs: list[Job], batch_size: int) -> list[Completion]:
    """All completions in the order of the jobs; afterwards nothing may be left anywhere."""
    done = dict(engine.run(jobs, batch_size))
    assert engine.scheduler.blocks.n_free == engine.scheduler.blocks.n_blocks
    engine.scheduler.blocks.check_integrity()
    assert engine.target.n_sequences == 0  # type: ignore[attr-defined]
    assert engine.pool.n_live == 0
    return [done[i] for i in range(len(jobs))]


def greedy(prompt: list[int], method: str, **changes: Any) -> Job:
    params = {"max_tokens": N_TOKENS, "stop_ids": (EOS,)} | changes
    return Job(prompt, SamplingParams(**params), method)


# (batch size, stages, reference attention, prefill chunk, blocks of 4 tokens): the last is small enough to scatter
# the block tables of eight sequences.
SETUPS = [(1, 1, False, 512, 400), (8, 2, False, 17, 320), (8, 4, True, 40, 400)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_method_in_every_setup_writes_what_generate_writes(
    family: str, method: str, target: MakeTarget, engine: MakeEngine, prompts: Prompts, generate: Generate
) -> None:
    texts = prompts(8)
    wanted = [generate(family, tuple(text), N_TOKENS) for text in texts]
    answers = {tuple(text): answer for text, answer in zip(texts, wanted, strict=True)}
    for batch, stages, reference, chunk, n_blocks in SETUPS:
        n_texts = 2 if batch == 1 else 8
        made = target(family, stages=stages, reference=reference, n_blocks=n_blocks, block_size=4)
        runner = engine(made, answers, SchedulerOptions(prefill_chunk=chunk))
        done = run(runner, [greedy(text, method) for text in texts[:n_texts]], batch)
        assert [completion.token_ids for completion in done] == wanted[:n_texts], (batch, stages, reference)
        for completion in done:
            stats = completion.stats
            assert len(completion.token_ids) == 1 + sum(stats.step_tokens)
            assert stats.target_forwards == len(stats.step_tokens)
            assert all(n >= 1 for n in stats.step_tokens)
            if method == "always-wrong":
                assert stats.accepted_tokens == 0 < stats.drafted_tokens
            if method == "always-right":
                assert stats.accepted_tokens == stats.drafted_tokens > 0
                assert stats.target_forwards == -(-(len(completion.token_ids) - 1) // 5)
