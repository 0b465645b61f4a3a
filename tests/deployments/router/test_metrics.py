"""The router's metrics after known requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from deployments.pipeline.stage_reports import LoadReport, StageLoad
from deployments.router.lane import Lane
from engine.events import LENGTH, STOP
from tests.deployments.conftest import METHODS, Serving, job_of
from tests.support.metrics import values


def total(text: str, name: str, **labels: str) -> float:
    """The sum over all engines."""
    return sum(values(text, name, **labels))


def summed(stats: Iterable[Any], name: str) -> float:
    return sum(getattr(one, name) for one in stats)


async def test_metrics_add_up_to_the_answers_of_all_lanes(serving: Serving) -> None:
    jobs = [job_of(n, METHODS[n % 4], max_tokens=20 + n, temperature=0.8 * (n % 2)) for n in range(8)]
    async with serving(n_lanes=2) as served:
        assert total(served.router.metrics_text(), "vllm:request_success_total") == 0
        await served.up()
        answers = await served.check(*jobs)
        await served.settled()
        before = served.router.metrics_text()
        cancelled = served.router.stream(job_of(20, max_tokens=500))
        await anext(cancelled)
        await cancelled.aclose()
        await served.settled()
        after = served.router.metrics_text()
        lanes = [lane.target.name for lane in served.router.lanes]
    stats = [answer.stats for answer in answers]
    steps = [event for answer in answers for event in answer.events[1:]]
    n_prompt, n_output = sum(len(job.prompt) for job in jobs), sum(len(answer.token_ids) for answer in answers)
    n_computed = n_prompt - summed(stats, "cached_tokens")
    n_accepted, n_steps = summed(stats, "accepted_tokens"), summed(stats, "target_forwards")
    for value, names in (
        (n_prompt, "prompt_tokens_total request_prompt_tokens_sum"),
        (n_output, "generation_tokens_total request_generation_tokens_sum"),
        (sum(20 + n for n in range(8)), "request_params_max_tokens_sum"),
        (n_computed, "request_prefill_kv_computed_tokens_sum"),
        (n_computed + n_output, "iteration_tokens_total_sum"),
        (sum(bool(event.drafts) for event in steps), "spec_decode_num_drafts_total"),
        (summed(stats, "drafted_tokens"), "spec_decode_num_draft_tokens_total"),
        (n_accepted, "spec_decode_num_accepted_tokens_total spec_decode_num_accepted_tokens_per_pos_total"),
        (n_steps, "inter_token_latency_seconds_count time_per_output_token_seconds_count"),
        (len(jobs), "request_success_total e2e_request_latency_seconds_count time_to_first_token_seconds_count"),
        (len(jobs), "request_time_per_output_token_seconds_count"),
    ):
        assert {name: total(before, f"vllm:{name}") for name in names.split()} == dict.fromkeys(names.split(), value)
    phases = [total(before, f"vllm:request_{name}_time_seconds_sum") for name in ("queue", "prefill", "decode")]
    assert abs(sum(phases) - total(before, "vllm:e2e_request_latency_seconds_sum")) < 1e-6
    assert abs(sum(phases[1:]) - total(before, "vllm:request_inference_time_seconds_sum")) < 1e-6
    reasons = [answer.events[-1].finish_reason for answer in answers]
    for reason, n in (("stop", reasons.count(STOP)), ("length", reasons.count(LENGTH)), ("abort", 1)):
        assert total(after, "vllm:request_success_total", finished_reason=reason) == n
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"):
        assert total(after, f"vllm:{name}") == 0
    assert total(after, "vllm:time_to_first_token_seconds_count") == len(jobs) + 1
    for engine in ("0", "1"):  # a lane is an engine
        assert values(after, "vllm:cache_config_info", engine=engine, block_size="16") == [1]
    for lane in lanes:
        for name, value in (("sequences_scattered", 0), ("longest_free_run_perc", 1), ("blocks_moved_total", 0)):
            assert values(after, f"spectra:kv_{name}", lane=lane) == [value]


async def test_load_figures_have_a_stage_and_a_rank(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    load = LoadReport({"ready": 9.0}, tuple(StageLoad({"read": 0.5 * n}, n) for n in range(4)), n_ranks=2)
    monkeypatch.setattr(Lane, "load_report", load)
    async with serving() as served:
        await served.up()
        text = served.router.metrics_text()
    assert values(text, "spectra:load_seconds", stage="all", rank="all", phase="ready") == [9.0]
    for n, (stage, rank) in enumerate([("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]):
        assert values(text, "spectra:load_bytes", stage=stage, rank=rank) == [n]
        assert values(text, "spectra:load_seconds", stage=stage, rank=rank, phase="read") == [0.5 * n]
