"""A text that goes on behind tokens emitted elsewhere is the text that nobody interrupted."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import RequestError
from engine.events import LENGTH, STOP
from engine.loop import Completion
from engine.protocol import Outcome, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from speculators.pld_plus.speculator import PldPlusConfig, PldPlusHidden
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.tiny_models import random_prompts

FAMILY = "qwen3"
METHODS = ("autoregressive", "always-wrong", "always-right", "spectra", "token-recycling", "pld-plus-h", "pld-plus-a")
N_TOKENS = 12
STYLES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.8, "seed": 5},
    "penalties": {"temperature": 0.8, "seed": 6, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    "min_tokens": {"temperature": 1.1, "seed": 7, "min_tokens": 9, "stop_ids": tuple(range(0, 97, 3))},
    "logprobs": {"temperature": 0.8, "seed": 8, "logprobs": 3},
}


def at(cut: int, whole: Completion, job: Request, method: str) -> Request:
    return Request(job.prompt, job.params, method, emitted=whole.token_ids[:cut])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("style", STYLES)
def test_a_text_goes_on_from_every_token_of_it(method: str, style: str) -> None:
    job = Request(random_prompts(1)[0], SamplingParams(max_tokens=N_TOKENS, **STYLES[style]))
    (whole,) = complete_all(make_engine(make_target(FAMILY)), [job])
    assert len(whole.token_ids) >= 9
    answers = {tuple(job.prompt): whole.token_ids}
    cuts = range(len(whole.token_ids))
    options = SchedulerOptions(prefill_chunk=13)
    runner = make_engine(make_target(FAMILY, stages=2), answers, options)
    done = complete_all(runner, [at(cut, whole, job, method) for cut in cuts])
    for cut, rest in zip(cuts, done, strict=True):
        assert rest.token_ids == whole.token_ids[cut:]
        assert rest.finish_reason == whole.finish_reason
        assert rest.stats.prompt_tokens == len(job.prompt)
        assert sum(rest.stats.step_tokens) == len(rest.token_ids) - (cut == 0)
        if whole.logprobs is not None:
            assert rest.logprobs is not None
            wanted = whole.logprobs[cut:]
            assert [one.token_id for one in rest.logprobs] == [one.token_id for one in wanted]
            assert [one.logprob for one in rest.logprobs] == pytest.approx([one.logprob for one in wanted], abs=1e-4)


def test_resumed_and_interrupted_again_the_text_is_the_same() -> None:
    params = SamplingParams(max_tokens=40, **STYLES["penalties"])
    jobs = [Request(text, params) for text in random_prompts(4)]
    plain = complete_all(make_engine(make_target(FAMILY)), jobs)
    tight = make_engine(make_target(FAMILY, n_blocks=32, block_size=4), None, SchedulerOptions(prefill_chunk=9))
    done = complete_all(
        tight,
        [at(3 + i, whole, job, "pld+spectra-core") for i, (whole, job) in enumerate(zip(plain, jobs, strict=True))],
    )
    assert [rest.token_ids for rest in done] == [whole.token_ids[3 + i :] for i, whole in enumerate(plain)]
    assert sum(rest.stats.preemptions for rest in done) > 0


def test_the_limit_counts_what_was_emitted_elsewhere() -> None:
    text = random_prompts(1)[0]
    runner = make_engine(make_target(FAMILY))
    (done,) = complete_all(runner, [Request(text, SamplingParams(max_tokens=5), emitted=[7, 8, 9, 10])])
    assert (len(done.token_ids), done.finish_reason) == (1, LENGTH)
    long = (text * 20)[:490]
    (fits,) = complete_all(runner, [Request(long, SamplingParams(max_tokens=10), emitted=[7] * 9)])
    assert len(fits.token_ids) == 1
    with pytest.raises(RequestError) as caught:
        runner.submit(Request(text, SamplingParams(max_tokens=4), emitted=[7, 8, 9, 10]))
    assert caught.value.param == "max_tokens"


def test_a_stop_id_ends_the_rest_as_it_ends_the_whole() -> None:
    job = Request(random_prompts(1)[0], SamplingParams(max_tokens=N_TOKENS))
    (free,) = complete_all(make_engine(make_target(FAMILY)), [job])
    stop = free.token_ids[6]
    params = SamplingParams(max_tokens=N_TOKENS, stop_ids=(stop,))
    (whole,) = complete_all(make_engine(make_target(FAMILY)), [Request(job.prompt, params)])
    assert whole.finish_reason == STOP
    cuts = range(len(whole.token_ids))
    done = complete_all(
        make_engine(make_target(FAMILY)), [at(cut, whole, Request(job.prompt, params), "spectra-core") for cut in cuts]
    )
    assert [rest.token_ids for rest in done] == [whole.token_ids[cut:] for cut in cuts]
    assert {rest.finish_reason for rest in done} == {STOP}


class Told(PldPlusHidden):
    """Remembers for which positions it was given hidden states."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.positions: list[int] = []

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        super().observe(request, outcome)
        assert outcome.artefacts is not None
        assert outcome.artefacts.hidden is not None
        n = len(outcome.artefacts.hidden)
        first = len(request.context) - 1 - n if outcome.tokens else outcome.prompt_start
        self.positions += range(first, first + n)


@pytest.mark.parametrize("n_blocks", [200, 24])
def test_a_speculator_is_told_of_every_position_once(n_blocks: int) -> None:
    told: list[Told] = []

    def make(_: object) -> Told:
        told.append(Told(PldPlusConfig(layer=1, dims=16, heads=((0, 1),))))
        return told[-1]

    text = random_prompts(1)[0]
    runner = make_engine(
        make_target(FAMILY, n_blocks=n_blocks, block_size=4), None, SchedulerOptions(prefill_chunk=11), {"told": make}
    )
    other = Request(random_prompts(1)[0], SamplingParams(max_tokens=30), priority=-1)
    jobs = [Request(text, SamplingParams(max_tokens=30), "told", emitted=[7, 8, 9]), other]
    done = complete_all(runner, jobs)
    assert (done[0].stats.preemptions > 0) == (n_blocks == 24)
    unheard = done[0].stats.step_tokens[-1]  # nobody drafts behind the last step
    assert told[0].positions == list(range(len(text) + 3 + len(done[0].token_ids) - 1 - unheard))
