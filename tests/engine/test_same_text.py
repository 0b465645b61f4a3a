"""Seeded text is that of plain decoding: with any drafts, batch, stages, prices or predictions, and when resumed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from engine.errors import RequestError
from engine.events import LENGTH
from engine.loop import Completion, Engine
from engine.protocol import Branch, Outcome, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.step_cost import StepCosts
from engine.target_model.step_timing import measure
from speculators.auto.prices import Prices
from speculators.auto.speculator import Auto
from speculators.pld_plus.speculator import PldPlusConfig, PldPlusHidden
from speculators.registry import Factory
from speculators.spectra.core import SpectraCore
from speculators.successors.speculator import Successors
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.tiny_models import random_prompts

N_TOKENS = 24
N_PREDICTED = 7  # requests
HOT = {"temperature": 0.9, "seed": 3}
THIRDS = tuple(range(0, 97, 3))
ALL = {"top_p": 0.9, "top_k": 30, "min_p": 0.01, "repetition_penalty": 1.1, "logit_bias": {5: 1.0}, "min_tokens": 5}
STYLES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": HOT,
    "cool": {**HOT, "temperature": 0.3},
    "top-p": {**HOT, "top_p": 0.7},
    "top-k": {**HOT, "temperature": 1.5, "top_k": 5},
    "min-p": {**HOT, "temperature": 1.5, "min_p": 0.1},
    "repetition": {**HOT, "repetition_penalty": 1.4},
    "presence-frequency": {**HOT, "presence_penalty": 1.1, "frequency_penalty": 0.6},
    "bias": {**HOT, "logit_bias": {7: 4.0, 8: -100.0}},
    "min-tokens": {**HOT, "min_tokens": 8, "stop_ids": THIRDS},
    "allowed": {**HOT, "allowed_ids": tuple(range(1, 97, 5))},
    "bad-words": {**HOT, "bad_words": ((3,), (5, 7), *((i, i + j) for i in range(90) for j in range(1, 4)))},
    "greedy-masks": {"allowed_ids": tuple(range(40)), "bad_words": tuple((i, i) for i in range(40)), "min_tokens": 3},
    "greedy-penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "logit_bias": {9: 2.0}},
    "greedy-min-tokens": {"min_tokens": 6, "stop_ids": tuple(range(0, 97, 2))},
    "logprobs": {**HOT, "logprobs": 3},
    "all": {**HOT, **ALL, "presence_penalty": 0.2, "frequency_penalty": 0.2, "stop_ids": THIRDS},
}
QUICK = ("suffix+token-recycling+spectra-core", "pld+spectra-core", "always-wrong", "always-right")
METHODS = (*QUICK, "pld", "spectra-core", "suffix", "token-recycling", "suffix+token-recycling")


def jobs_for(method: str = "autoregressive") -> list[Request]:
    """A request of each style."""
    styled = zip(random_prompts(len(STYLES)), STYLES.values(), strict=True)
    return [Request(text, SamplingParams(max_tokens=N_TOKENS, **style), method) for text, style in styled]


@cache
def plain() -> list[Completion]:
    """The requests decoded one after the other without speculation."""
    return complete_all(make_engine(make_target("qwen3")), jobs_for(), 1)


def plain_texts() -> list[list[int]]:
    return [completion.token_ids for completion in plain()]


def engine_of(stages: int = 2, chunk: int = 17, **extra: Factory) -> Engine:
    """An engine that knows the true texts."""
    answers = {tuple(one.prompt): text for one, text in zip(jobs_for(), plain_texts(), strict=True)}
    return make_engine(make_target("qwen3", stages=stages), answers, SchedulerOptions(prefill_chunk=chunk), extra)


@pytest.mark.parametrize("method", [pytest.param(m, marks=[pytest.mark.matrix] * (m not in QUICK)) for m in METHODS])
def test_drafts_batches_and_stages_change_no_text(method: str) -> None:
    done = complete_all(engine_of(), jobs_for(method), 8)
    assert [completion.token_ids for completion in done] == plain_texts()
    for completion in done:
        if method == "always-right":
            assert completion.stats.accepted_tokens == completion.stats.drafted_tokens
        if method == "always-wrong":
            assert completion.stats.accepted_tokens == 0


class RecordedAuto(Auto):
    """Records the nodes of every draft; every third step has the ``expensive`` costs."""

    def __init__(self, parts: Sequence[Any], costs: StepCosts | None, expensive: StepCosts | None = None) -> None:
        super().__init__(parts, costs)
        self.sizes: list[int] = []
        self._turns = (costs, costs, expensive or costs)

    def propose_batch(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        costs = self._turns[len(self.sizes) % 3]
        self._prices = None if costs is None else Prices(costs)
        drafts = super().propose_batch(requests, budgets)
        self.sizes += [sum(len(branch.tokens) for branch in draft) for draft in drafts]
        return drafts


def line(per_row: float) -> StepCosts:
    """A step of ``batch`` rows takes a second, and each further row ``per_row`` seconds."""
    return StepCosts({batch: ((batch, 300), (1.0, 1.0 + (300 - batch) * per_row)) for batch in (1, 8)})


@pytest.mark.parametrize("price", ["unknown", "measured", "low", "high", "changing"])
def test_auto_changes_no_text_at_any_price(price: str) -> None:
    costs = {"high": line(5.0), "unknown": None}.get(price, line(0.01))
    if price == "measured":
        costs = measure(make_target("qwen3", n_blocks=300))
    sources = [Successors(), SpectraCore()] if price == "low" else [Successors()]
    auto = RecordedAuto(sources, costs, line(5.0) if price == "changing" else None)
    done = complete_all(engine_of(auto=lambda _: auto), jobs_for("auto"), 1 if price == "changing" else 3)
    assert [completion.token_ids for completion in done] == plain_texts()
    assert any(auto.sizes) != (price == "high") or price == "measured"
    if price == "changing":
        switches = sum(bool(one) != bool(other) for one, other in zip(auto.sizes, auto.sizes[1:], strict=False))
        assert switches >= 4, "drafting goes on and off within a text"


def edited(text: list[int], seed: int) -> list[int]:
    """Every fifth token or so replaced, left out or preceded by another."""
    rng, changed = random.Random(seed), list(text)
    for place in sorted(rng.sample(range(len(text)), len(text) // 5), reverse=True):
        kind = rng.randrange(3)
        changed[place : place + (kind > 0)] = [rng.randrange(3, 90)] if kind < 2 else []
    return changed


@pytest.mark.parametrize("method", ["prediction", "prediction+suffix+token-recycling", "auto", "auto-costs"])
def test_predictions_change_no_text(method: str) -> None:
    texts = plain_texts()[:N_PREDICTED]
    predictions = {
        "right": texts,
        "edited": [edited(text, i) for i, text in enumerate(texts)],
        "of another": [*texts[1:], texts[0]],
        "useless": [[random.Random(i).randrange(3, 90) for _ in range(200)] for i in range(len(texts))],
        "impossible": [[10**6, *text, -5] for text in texts],
        "of some": [text if i % 2 else [] for i, text in enumerate(texts)],
    }
    for kind, predicted in predictions.items():
        pairs = zip(jobs_for(method)[:N_PREDICTED], predicted, strict=True)
        jobs = [Request(one.prompt, one.params, method, prediction=prediction) for one, prediction in pairs]
        done = complete_all(engine_of(), jobs, 4)
        assert [completion.token_ids for completion in done] == texts, kind
        has_source = ["prediction" in completion.stats.by_source for completion in done]
        if kind == "right" and method != "auto-costs":
            for completion in done[:2]:
                assert completion.stats.target_forwards <= N_TOKENS / 4
                assert completion.stats.by_source["prediction"].proposed_accepted >= 0.8 * (N_TOKENS - 2)
        if kind == "of some":
            assert not any(has_source[::2]), "a prediction helps its own request only"
        if (kind, method) == ("useless", "prediction"):
            assert sum(one.stats.drafted_tokens for one in done) < sum(map(len, texts))


def resumed(cut: int, whole: Completion, job: Request, method: str) -> Request:
    return Request(job.prompt, job.params, method, emitted=whole.token_ids[:cut])


@pytest.mark.parametrize("method", ["autoregressive", "always-wrong", "always-right", "pld-plus-h", "pld-plus-a"])
def test_a_text_continues_after_any_of_its_tokens(method: str) -> None:
    for style, (job, whole) in zip(STYLES, zip(jobs_for(), plain(), strict=True), strict=True):
        if style not in ("greedy", "min-tokens", "logprobs", "all"):
            continue
        cuts = range(len(whole.token_ids))
        done = complete_all(engine_of(), [resumed(cut, whole, job, method) for cut in cuts])
        for cut, rest in zip(cuts, done, strict=True):
            assert rest.token_ids == whole.token_ids[cut:]
            assert rest.finish_reason == whole.finish_reason
            assert rest.stats.prompt_tokens == len(job.prompt)
            assert sum(rest.stats.step_tokens) == len(rest.token_ids) - (cut == 0)
            expected = (whole.logprobs or [])[cut:]
            assert [one.token_id for one in rest.logprobs or ()] == [one.token_id for one in expected]
            found = [one.logprob for one in rest.logprobs or ()]
            assert found == pytest.approx([one.logprob for one in expected], abs=1e-4)


def test_preempted_resumed_requests_continue_with_identical_output() -> None:
    tight = make_engine(make_target("qwen3", n_blocks=64, block_size=4), None, SchedulerOptions(prefill_chunk=9))
    pairs = enumerate(zip(plain(), jobs_for(), strict=True))
    done = complete_all(tight, [resumed(i % 5, whole, job, "pld+spectra-core") for i, (whole, job) in pairs])
    assert [rest.token_ids for rest in done] == [text[i % 5 :] for i, text in enumerate(plain_texts())]
    assert sum(rest.stats.preemptions for rest in done) > 0


def test_emitted_tokens_count_towards_max_tokens() -> None:
    text, engine = random_prompts(1)[0], make_engine(make_target("qwen3"))
    (done,) = complete_all(engine, [Request(text, SamplingParams(max_tokens=5), emitted=[7, 8, 9, 10])])
    assert (len(done.token_ids), done.finish_reason) == (1, LENGTH)
    long = (text * 20)[:490]
    (fits,) = complete_all(engine, [Request(long, SamplingParams(max_tokens=10), emitted=[7] * 9)])
    assert len(fits.token_ids) == 1
    with pytest.raises(RequestError) as caught:
        engine.submit(Request(text, SamplingParams(max_tokens=4), emitted=[7, 8, 9, 10]))
    assert caught.value.param == "max_tokens"


class HiddenPositionRecorder(PldPlusHidden):
    """Records the positions whose hidden states it receives."""

    def __init__(self) -> None:
        super().__init__(PldPlusConfig(layer=1, dims=16, heads=((0, 1),)))
        self.positions: list[int] = []

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        super().observe(request, outcome)
        assert outcome.artefacts is not None
        assert outcome.artefacts.hidden is not None
        n = len(outcome.artefacts.hidden)
        first = len(request.context) - 1 - n if outcome.tokens else outcome.prompt_start
        self.positions += range(first, first + n)


@pytest.mark.parametrize("n_blocks", [200, 24])
def test_a_speculator_observes_every_position_once(n_blocks: int) -> None:
    listener, text = HiddenPositionRecorder(), random_prompts(1)[0]
    target = make_target("qwen3", n_blocks=n_blocks, block_size=4)
    engine = make_engine(target, None, SchedulerOptions(prefill_chunk=11), {"listener": lambda _: listener})
    other = Request(text, SamplingParams(max_tokens=30), priority=-1)
    job = Request(text, SamplingParams(max_tokens=30), "listener", emitted=[7, 8, 9])
    done = complete_all(engine, [job, other])[0]
    assert (done.stats.preemptions > 0) == (n_blocks == 24)
    last_step = done.stats.step_tokens[-1]  # no draft follows it
    assert listener.positions == list(range(len(text) + 3 + len(done.token_ids) - 1 - last_step))
