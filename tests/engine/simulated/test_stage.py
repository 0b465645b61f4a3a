"""A simulated pipeline writes its known text and takes the times of its profile, whatever is drafted or batched."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError, RequestError
from engine.loop import Engine
from engine.model.ranges import split_layers
from engine.protocol import Needs
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.simulated import stage, timing
from engine.simulated.answers import RecordedAnswers, pack_recordings
from engine.simulated.profile import PROFILES, SIMULATED, PipelineProfile, Simulation, profile_of
from engine.simulated.stage import SimulatedStage
from engine.simulated.timing import SimulatedLink
from engine.stage.base import Activations, StageLike
from engine.step import SequenceStart, Step, StepResult, Work
from engine.target_model.info import TargetInfo
from engine.target_model.loading import describe_target, load_stage
from engine.target_model.options import TargetOptions
from engine.tree import TokenTree
from speculators.pool import SpeculatorPool

QUICK = PipelineProfile(1e-5)
PROMPTS = [[1, *random.Random(i).choices(range(3, 300), k=5 + 7 * i)] for i in range(6)]
ANSWERS = [[*(random.Random(-i).choices(range(3, 300), k=12) * 4)[: 20 + 5 * i], 2] for i in range(4)]
RECORDINGS = pack_recordings(zip(PROMPTS, ANSWERS, strict=False))


class SimulatedPipeline:
    """Runs simulated stages one after the other, as ``engine.target_model.local.LocalTarget`` runs real ones."""

    def __init__(self, info: TargetInfo, stages: Sequence[StageLike]) -> None:
        self.info = info
        self._stages = stages

    def step(self, step: Step) -> StepResult:
        activations: Activations | None = None
        for one in self._stages:
            one.admit(step)
            activations = one.forward(step, activations)
            computing = one.computing()
            assert computing is not None
            computing.wait()
        assert activations is not None
        return StepResult(step.step_id, self._stages[-1].verify(activations), 0.0)


def _pipeline(
    checkpoint: Path, stages: int = 1, kv_bytes: int = 4 << 20, profile: PipelineProfile = QUICK
) -> SimulatedPipeline:
    options = TargetOptions(
        str(checkpoint), stages, kv_bytes=kv_bytes, block_size=16, simulation=Simulation(profile, RECORDINGS)
    )
    info = describe_target(options, checkpoint)
    ranges = split_layers(info.spec.n_layers, stages)
    return SimulatedPipeline(info, [load_stage(options, checkpoint, layers, info) for layers in ranges])


def _texts(pipeline: SimulatedPipeline, method: str, **limits: int) -> tuple[list[list[int]], int]:
    """Outputs, and how often a request was preempted."""
    engine = Engine(pipeline, SpeculatorPool(), SchedulerOptions(**limits))
    params = SamplingParams(max_tokens=60, stop_ids=(2,))
    written: dict[int, list[int]] = {engine.submit(Request(prompt, params, method, 16)): [] for prompt in PROMPTS}
    preemptions = 0
    while engine.scheduler.has_work:
        for number, event in engine.step():
            written[number] += event.token_ids
            preemptions += event.stats.preemptions if event.stats is not None else 0
    return list(written.values()), preemptions


def _expected() -> list[list[int]]:
    made_up = RecordedAnswers(320, (2,))
    params = SamplingParams(stop_ids=(2,))
    return ANSWERS + [made_up.to(prompt, params).part(0, 60) for prompt in PROMPTS[4:]]


@pytest.mark.parametrize(
    ("method", "stages", "max_sequences"),
    [("autoregressive", 1, 1), ("pld", 2, 3), ("suffix", 8, 6), ("pld+suffix", 2, 6)],
)
def test_the_text_is_the_known_one_whatever_the_method_batch_and_stages(
    tiny_checkpoint: Path, method: str, stages: int, max_sequences: int
) -> None:
    pipeline = _pipeline(tiny_checkpoint, stages)
    assert _texts(pipeline, method, max_sequences=max_sequences) == (_expected(), 0)
    pipeline.step(Step(1 << 40, []))
    stages_made = [one for one in pipeline._stages if isinstance(one, SimulatedStage)]
    assert [one.n_sequences for one in stages_made] == [0] * stages, "sequences that ended are forgotten"


def test_preempted_sequences_continue_with_the_known_text(tiny_checkpoint: Path) -> None:
    per_block = (4 << 20) // _pipeline(tiny_checkpoint).info.n_blocks
    texts, preemptions = _texts(_pipeline(tiny_checkpoint, kv_bytes=11 * per_block), "pld")
    assert texts == _expected()
    assert preemptions > 0


def test_methods_that_read_states_are_refused_by_name(tiny_checkpoint: Path) -> None:
    pipeline = _pipeline(tiny_checkpoint)
    assert pipeline.info.spec.family == SIMULATED
    engine = Engine(pipeline, SpeculatorPool())
    with pytest.raises(RequestError, match=r"'spectra-core': a simulated target has no states to read.*pld") as refused:
        engine.submit(Request(PROMPTS[0], SamplingParams(), "spectra-core"))
    assert refused.value.param == "method"


class LateClock:
    """``time`` of the product, in which a sleep ends 0.3 ms late and reading the time takes 10 microseconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        self.now += 1e-5
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + 3e-4


def test_a_step_takes_the_time_of_its_profile_after_forward_has_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LateClock()
    monkeypatch.setattr(timing, "time", clock)
    monkeypatch.setattr(stage, "time", clock)
    made = SimulatedStage(PipelineProfile(base_s=0.05, stages=2), None, 8, 16)
    start, taken = SequenceStart(0, SamplingParams(), 2, Needs()), []
    for number in range(100):
        work = Work(0, 2 * number, [5, 6], new_blocks=[number] if number % 8 == 0 else [])
        step = Step(number, [work], [] if number else [start])
        made.admit(step)
        made.forward(step, None)
        assert made.lateness.sleeps == number
        taken.append(made.computing().wait())
    assert min(taken) >= 0.05
    assert max(taken) < 0.0504
    assert taken[-1] < 0.0501, "the delay of the timer is learned"
    assert made.lateness.worst >= made.lateness.mean >= 0.0
    made.computing().wait()  # its time is past


GREEDY = SamplingParams()
PROMPT = [5, 6, 7, 5, 6]


def _written(prompt: list[int], params: SamplingParams = GREEDY, n: int = 200, recordings: bytes = b"") -> list[int]:
    return RecordedAnswers(300, (2,), recordings).to(prompt, params).part(0, n)


def test_a_recorded_prompt_gets_its_first_answer_and_then_made_up_text() -> None:
    answer = [9, 8, 7, 2]
    recordings = pack_recordings([(PROMPT, answer), ([1], [3]), (PROMPT, [4])])
    assert _written(PROMPT, n=60, recordings=recordings) == answer + _written(PROMPT, n=56)
    with pytest.raises(ConfigError, match="outside the vocabulary of 300"):
        RecordedAnswers(300, (), pack_recordings([(PROMPT, [300])]))


def test_made_up_text_depends_on_prompt_seed_and_choice_and_not_on_how_it_is_read() -> None:
    def sampled(seed: int, choice: int = 0) -> list[int]:
        return _written(PROMPT, SamplingParams(temperature=0.8, seed=seed, choice=choice))

    whole, answer = _written(PROMPT), RecordedAnswers(300, (2,)).to(PROMPT, GREEDY)
    assert answer.part(150, 20) == whole[150:170]
    assert answer.part(0, 7) + answer.part(7, 193) == whole
    assert whole != _written([*PROMPT, 1])
    assert _written(PROMPT, SamplingParams(seed=1)) == _written(PROMPT, SamplingParams(seed=2))
    assert sampled(1) == sampled(1)
    assert len({tuple(sampled(1)), tuple(sampled(2)), tuple(sampled(1, choice=1)), tuple(whole)}) == 4


def test_made_up_text_never_ends_by_itself() -> None:
    written = _written([2, 2, 2, 77], SamplingParams(stop_ids=(2, 77)), n=2000)
    assert len(written) == 2000
    assert not {2, 77} & set(written)
    assert max(written) < 300


EMPTY = TokenTree([], [])
DECODING = [Work(0, 900, [1], TokenTree([5, 6, 7], [-1, 0, 0])), Work(1, 100, [1], EMPTY)]
CHUNK = Work(2, 512, list(range(20)))


@pytest.mark.parametrize(
    ("profile", "works", "is_last", "seconds"),
    [
        *((PROFILES["flat10"], [DECODING[1]] * n, False, ms / 1e3) for n, ms in ((0, 10), (2, 10), (3, 15), (16, 80))),
        (PipelineProfile(0.010, flat_sequences=1, node_s=1e-3), DECODING, False, 0.020 + 3e-3),
        (PipelineProfile(0.010, flat_sequences=2, prompt_row_s=1e-4), [*DECODING, CHUNK], False, 0.010 + 20e-4),
        (PipelineProfile(0.010, flat_sequences=4, context_s=1e-6), [*DECODING, CHUNK], True, 0.010 + 1000e-6),
        (PipelineProfile(0.010, verify_s=0.002), DECODING[1:], True, 0.012),
        (PipelineProfile(0.010, flat_sequences=4, flat_rows=2), DECODING[:1], False, 0.020),  # four rows
    ],
)
def test_a_step_takes_the_time_of_its_sequences_rows_and_context(
    profile: PipelineProfile, works: list[Work], is_last: bool, seconds: float
) -> None:
    assert profile.work_seconds(works, is_last=is_last) == pytest.approx(seconds)


def test_a_stage_begins_when_the_wire_has_delivered() -> None:
    profile = PipelineProfile(0.0, link_latency_s=0.5, link_bytes_per_s=1e6, row_bytes=100_000)
    sender, receiver = SimulatedLink(profile), SimulatedLink(profile)
    first, second = sender.departure(1000.0, 2), sender.departure(1000.1, 1)
    assert receiver.arrival(first, 1000.0) == pytest.approx(1000.7)
    assert receiver.arrival(second, 1000.1) == pytest.approx(1000.8)  # the wire was busy until 1000.2
    assert receiver.arrival(first, 1001.0) == 1001.0  # it was there already
    assert receiver.arrival(None, 1000.0) == 1000.0  # from the router
    assert receiver.arrival(first, 5.0) == 5.0  # another machine's clock
    assert PipelineProfile(0.010).wire_seconds(65) == 0.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"base_s": 0.01, "bases": 1}, "no field 'bases'; it has base_s, stages"),
        ({}, "lacks base_s"),
        ({"base_s": "fast"}, "base_s is 'fast'; it must be a number"),
        ({"base_s": True}, "base_s is True"),
        ({"base_s": 0.01, "stages": 2.5}, "stages is 2.5; it must be a whole number"),
        ({"base_s": 0.01, "stages": 0}, "stages is 0; it must be at least 1"),
        ({"base_s": -1}, "base_s is -1; it must be at least 0"),
        ({"base_s": float("nan")}, "base_s is nan"),
        ({"base_s": 0.01, "link_bytes_per_s": -5.0}, "link_bytes_per_s is -5.0"),
    ],
)
def test_a_wrong_field_of_a_profile_is_named(given: dict[str, Any], message: str) -> None:
    assert profile_of({"base_s": 0.02, "flat_sequences": 4}) == PipelineProfile(0.02, flat_sequences=4)
    with pytest.raises(ConfigError, match=message):
        profile_of(given)
