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
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.methods import AVAILABLE, TRAINED
from tests.support.tiny_models import FAMILIES, random_prompts, reference_tokens

METHODS = (
    *(method for method in AVAILABLE if method not in (*TRAINED, "grammar")),
    "suffix+token-recycling",
    "suffix+token-recycling+spectra-core+lookahead",
    "auto-costs",
    "draft-tree",
    "always-wrong",
    "always-right",
)
DEPTH = 4  # tokens per draft of always-wrong and always-right
EOS = 2
N_TOKENS = 20
# (batch size, stages, prefill chunk); all prompts are longer than the sliding window.
SETUPS = [(1, 1, 512), (6, 2, 17), (3, 4, 40)]
# Each method in three of the cells family x set-up; `make test` runs the first.
CELLS = [
    pytest.param(
        method,
        FAMILIES[(i + 2 * turn) % len(FAMILIES)],
        SETUPS[(i + turn) % 3],
        marks=[pytest.mark.matrix] * (turn > 0),
    )
    for i, method in enumerate(METHODS)
    for turn in range(3)
]


def greedy(prompt: list[int], method: str, **changes: Any) -> Request:
    params: dict[str, Any] = {"max_tokens": N_TOKENS, "stop_ids": (EOS,)} | changes
    return Request(prompt, SamplingParams(**params), method)


@pytest.mark.parametrize(("method", "family", "setup"), CELLS)
def test_greedy_text_equals_generate(method: str, family: str, setup: tuple[int, int, int]) -> None:
    batch, stages, chunk = setup
    texts = random_prompts(batch)
    expected = [reference_tokens(family, tuple(text), N_TOKENS) for text in texts]
    answers = {tuple(text): answer for text, answer in zip(texts, expected, strict=True)}
    target = make_target(family, stages=stages)
    engine = make_engine(target, answers, SchedulerOptions(prefill_chunk=chunk))
    done = complete_all(engine, [greedy(text, method) for text in texts], batch)
    assert [completion.token_ids for completion in done] == expected
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


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_scattered_block_tables_change_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)

    def any_block(self: BlockAllocator, *_: object) -> int:
        return rng.choice(self._free.nonzero()[0].tolist())

    monkeypatch.setattr(BlockAllocator, "_next_block", any_block)
    texts = random_prompts(4)
    target = make_target(family, stages=2, n_blocks=300, block_size=4)
    engine = make_engine(target, None, SchedulerOptions(prefill_chunk=17))
    done = complete_all(engine, [greedy(text, "pld+spectra-core") for text in texts], 3)
    assert [one.token_ids for one in done] == [reference_tokens(family, tuple(text), N_TOKENS) for text in texts]


def test_methods_may_differ_within_a_batch() -> None:
    texts = random_prompts(len(METHODS))
    expected = [reference_tokens("qwen2", tuple(text), N_TOKENS) for text in texts]
    answers = {tuple(text): answer for text, answer in zip(texts, expected, strict=True)}
    jobs = [greedy(text, method) for text, method in zip(texts, METHODS, strict=True)]
    done = complete_all(make_engine(make_target("qwen2"), answers, SchedulerOptions(prefill_chunk=11)), jobs, len(jobs))
    assert [completion.token_ids for completion in done] == expected


QUICK = ("autoregressive", "spectra", "draft-tree", "always-wrong", "always-right")


@pytest.mark.parametrize("method", [pytest.param(m, marks=[] if m in QUICK else [pytest.mark.matrix]) for m in METHODS])
def test_a_stop_id_or_the_length_limit_ends_the_text_at_its_token(method: str) -> None:
    """At the prefill's token, within an accepted path, at its last token and at the bonus token."""
    text = random_prompts(1)[0]
    plain = reference_tokens("gemma3", tuple(text), N_TOKENS)
    stopped = [greedy(text, method, stop_ids=(96, plain[place])) for place in range(8)]
    limited = [greedy(text, method, stop_ids=(), max_tokens=n) for n in range(1, 9)]
    done = complete_all(make_engine(make_target("gemma3"), {tuple(text): plain}), [*stopped, *limited], 4)
    for place, one in enumerate(done[:8]):
        expected = plain[: plain.index(plain[place]) + 1]
        assert (one.token_ids, one.finish_reason) == (expected, STOP)
        assert len(expected) == 1 + sum(one.stats.step_tokens)
        if method == "always-right":
            assert one.stats.accepted_tokens == sum(one.stats.step_tokens) - (len(expected) - 1) // (DEPTH + 1)
    for n, one in enumerate(done[8:], start=1):
        assert (one.token_ids, one.finish_reason) == (plain[:n], LENGTH)
        assert one.stats.accepted_tokens <= max(0, n - 1)
