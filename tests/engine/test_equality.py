"""Greedy fp32 text equals Hugging Face ``generate`` token for token, whatever drafts, batches, chunks or stages."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.events import LENGTH, STOP
from engine.kv.blocks import BlockAllocator
from engine.loop import Completion
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target.local import LocalTarget
from engine.target.options import TargetOptions
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.tiny_models import random_prompts, reference_tokens, saved_model

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
METHODS = (
    "autoregressive",
    "pld",
    "anpd",
    "lookahead",
    "pld-plus-h",
    "pld-plus-a",
    "rest",
    "spectra-core",
    "spectra-retrieval",
    "spectra",
    "suffix",
    "token-recycling",
    "prediction",
    "goose",
    "adapld",
    "stand",
    "suffix+token-recycling",
    "suffix+token-recycling+spectra-core+lookahead",
    "auto",
    "auto-costs",
    "draft-model",
    "draft-tree",
    "always-wrong",
    "always-right",
)
DEPTH = 4  # tokens per draft of the last two
EOS = 2
N_TOKENS = 20


# (batch size, stages, reference attention, prefill chunk); all prompts are longer than the sliding window.
SETUPS = [(1, 1, False, 512), (6, 2, False, 17), (3, 4, True, 40)]


def setups(family: str, method: str) -> list[tuple[int, int, bool, int]]:
    """All of them for one family; of each other family every method has one, and they differ from method to method."""
    turn = FAMILIES.index(family) + METHODS.index(method)
    return SETUPS if family == "llama" else [SETUPS[turn % len(SETUPS)]]


def greedy(prompt: list[int], method: str, **changes: Any) -> Request:
    params: dict[str, Any] = {"max_tokens": N_TOKENS, "stop_ids": (EOS,)} | changes
    return Request(prompt, SamplingParams(**params), method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_method_writes_what_generate_writes(family: str, method: str) -> None:
    texts = random_prompts(6)
    wanted = [reference_tokens(family, tuple(text), N_TOKENS) for text in texts]
    answers = {tuple(text): answer for text, answer in zip(texts, wanted, strict=True)}
    for batch, stages, reference, chunk in setups(family, method):
        runner = make_engine(
            make_target(family, stages=stages, reference=reference), answers, SchedulerOptions(prefill_chunk=chunk)
        )
        done = complete_all(runner, [greedy(text, method) for text in texts[:batch]], batch)
        assert [completion.token_ids for completion in done] == wanted[:batch], (batch, stages, reference, chunk)
        for completion in done:
            check_stats(method, completion)


def check_stats(method: str, completion: Completion) -> None:
    stats = completion.stats
    assert len(completion.token_ids) == 1 + sum(stats.step_tokens)
    assert stats.target_forwards == len(stats.step_tokens)
    assert all(n >= 1 for n in stats.step_tokens)
    if method == "autoregressive":
        assert (stats.drafted_tokens, stats.max_nodes_used, stats.by_source) == (0, 0, {})
    if method == "always-wrong":
        assert stats.accepted_tokens == 0 < stats.drafted_tokens
    if method == "always-right":
        assert stats.accepted_tokens == stats.drafted_tokens > 0
        assert stats.target_forwards == -(-(len(completion.token_ids) - 1) // (DEPTH + 1))


@pytest.mark.parametrize("family", FAMILIES)
def test_scattered_block_tables_change_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)

    def any_block(self: BlockAllocator, *_: object) -> int:
        return rng.choice(self._free.nonzero()[0].tolist())

    monkeypatch.setattr(BlockAllocator, "_next_block", any_block)
    texts = random_prompts(4)
    wanted = [reference_tokens(family, tuple(text), N_TOKENS) for text in texts]
    runner = make_engine(
        make_target(family, stages=2, n_blocks=300, block_size=4), None, SchedulerOptions(prefill_chunk=17)
    )
    jobs = [greedy(text, "pld+spectra-core") for text in texts]
    assert [completion.token_ids for completion in complete_all(runner, jobs, 3)] == wanted


def test_methods_may_differ_within_a_batch() -> None:
    texts = random_prompts(len(METHODS))
    wanted = [reference_tokens("qwen2", tuple(text), N_TOKENS) for text in texts]
    answers = {tuple(text): answer for text, answer in zip(texts, wanted, strict=True)}
    jobs = [greedy(text, method) for text, method in zip(texts, METHODS, strict=True)]
    done = complete_all(make_engine(make_target("qwen2"), answers, SchedulerOptions(prefill_chunk=11)), jobs, len(jobs))
    assert [completion.token_ids for completion in done] == wanted


@pytest.mark.parametrize("method", METHODS)
def test_a_stop_id_ends_the_text_wherever_it_is_drawn(method: str) -> None:
    text = random_prompts(1)[0]
    plain = reference_tokens("llama", tuple(text), N_TOKENS)
    for place in range(8):  # the prefill's token, within an accepted path, its last token, the bonus token
        stop = plain[place]
        wanted = reference_tokens("llama", tuple(text), N_TOKENS, eos_token_id=stop)
        assert wanted == plain[: plain.index(stop) + 1]
        runner = make_engine(make_target("llama"), {tuple(text): plain})
        (done,) = complete_all(runner, [greedy(text, method, stop_ids=(96, stop))])
        assert (done.token_ids, done.finish_reason) == (wanted, STOP)
        assert len(wanted) == 1 + sum(done.stats.step_tokens)
        if method == "always-right":
            assert done.stats.accepted_tokens == sum(done.stats.step_tokens) - (len(wanted) - 1) // (DEPTH + 1)


@pytest.mark.parametrize("method", METHODS)
def test_the_length_limit_cuts_drafts_and_text_at_the_same_token(method: str) -> None:
    text = random_prompts(1)[0]
    plain = reference_tokens("gemma3", tuple(text), N_TOKENS)
    runner = make_engine(make_target("gemma3"), {tuple(text): plain})
    jobs = [greedy(text, method, max_tokens=n, stop_ids=()) for n in range(1, 9)]
    for n, done in enumerate(complete_all(runner, jobs, 4), start=1):
        assert (done.token_ids, done.finish_reason) == (plain[:n], LENGTH)
        assert done.stats.accepted_tokens <= max(0, n - 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_runs(family: str) -> None:
    path = saved_model(family)
    made = LocalTarget.load(TargetOptions(str(path), stages=2, dtype="bfloat16", kv_bytes=1 << 20), path)
    for method in ("autoregressive", "pld+spectra-core"):
        jobs = [greedy(text, method, max_tokens=8, stop_ids=()) for text in random_prompts(2)]
        for done in complete_all(make_engine(made), jobs, 2):
            assert (len(done.token_ids), done.finish_reason) == (8, LENGTH)
