"""What the router's metrics say after known requests; the names of all are compared with docs/operations.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from engine.request import Request
from tests.deployments.conftest import Serving

MakeJob = Callable[..., Request]


def scraped(text: str) -> dict[tuple[str, ...], float]:
    """(name, value of every label but those of the model and of buckets, sorted by label) -> value."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [value for key, value in sorted(sample.labels.items()) if key not in ("model_name", "le")]
            found[(sample.name, *labels)] = sample.value
    return found


async def test_what_a_request_did_is_in_vllms_metrics(serving: Serving, make_job: MakeJob) -> None:
    async with serving(n_lanes=2) as served:
        before = scraped(served.router.metrics_text())
        assert before["vllm:request_success_total", "0", "stop"] == 0
        jobs = [make_job(number, "pld", max_tokens=30, temperature=0.8) for number in range(4)]
        answers = await asyncio.gather(*map(served.answer, jobs))
        await served.settled()
        text = served.router.metrics_text()

    def summed(name: str) -> float:
        after = scraped(text)
        return sum(value - before.get(key, 0) for key, value in after.items() if key[0] == f"vllm:{name}")

    stats: list[Any] = [answer.events[-1].stats for answer in answers]
    n_prompt, n_output = sum(len(job.prompt) for job in jobs), sum(len(answer.token_ids) for answer in answers)
    assert summed("prompt_tokens_total") == summed("request_prompt_tokens_sum") == n_prompt
    assert summed("generation_tokens_total") == summed("request_generation_tokens_sum") == n_output
    assert summed("request_success_total") == summed("e2e_request_latency_seconds_count") == 4
    assert summed("request_params_max_tokens_sum") == 4 * 30
    computed = n_prompt - sum(one.cached_tokens for one in stats)
    assert summed("request_prefill_kv_computed_tokens_sum") == computed
    assert summed("iteration_tokens_total_sum") == computed + n_output
    accepted = sum(one.accepted_tokens for one in stats)
    assert summed("spec_decode_num_accepted_tokens_total") == accepted
    assert summed("spec_decode_num_accepted_tokens_per_pos_total") == accepted
    assert summed("spec_decode_num_draft_tokens_total") == sum(one.drafted_tokens for one in stats)
    phases = [summed(f"request_{name}_time_seconds_sum") for name in ("queue", "prefill", "decode")]
    assert min(phases) > 0
    assert abs(sum(phases) - summed("e2e_request_latency_seconds_sum")) < 1e-6
    assert abs(sum(phases[1:]) - summed("request_inference_time_seconds_sum")) < 1e-6
    between = summed("inter_token_latency_seconds_count")
    assert between == summed("time_per_output_token_seconds_count") == sum(one.target_forwards for one in stats)
    assert summed("time_to_first_token_seconds_count") == summed("request_time_per_output_token_seconds_count") == 4
    assert {key[1] for key in before if key[0] == "vllm:cache_config_info"} == {"16"}
    after = scraped(text)
    for lane in (lane.target.name for lane in served.router.lanes):
        assert after["spectra:kv_sequences_scattered", lane] == 0
        assert after["spectra:kv_longest_free_run_perc", lane] == 1
        assert after["spectra:kv_blocks_moved_total", lane] == 0
    assert {key[3] for key in before if key[0] == "vllm:cache_config_info"} == {"0", "1"}  # a lane is an engine
