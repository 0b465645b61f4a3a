"""A simulated pipeline writes the text it knows, whatever is drafted, batched, preempted or split into stages."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.errors import RequestError
from engine.loop import Engine
from engine.model.ranges import split_layers
from engine.protocol import Needs
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.simulated.answers import Answers, pack_recordings
from engine.simulated.deadline import DeadlineSleep
from engine.simulated.link import Link
from engine.simulated.profile import SIMULATED, PipelineProfile, Simulation
from engine.simulated.stage import SimulatedStage
from engine.stage.base import Activations, StageLike
from engine.step import SequenceStart, Step, StepResult, Work
from engine.target.info import TargetInfo
from engine.target.loading import describe_target, load_stage
from engine.target.options import TargetOptions
from engine.target.step_timing import measure
from speculators.pool import SpeculatorPool

QUICK = PipelineProfile(1e-5)
PROMPTS = [[1, *random.Random(i).choices(range(3, 300), k=5 + 7 * i)] for i in range(6)]
ANSWERS = [[*(random.Random(-i).choices(range(3, 300), k=12) * 4)[: 20 + 5 * i], 2] for i in range(4)]
RECORDINGS = pack_recordings(zip(PROMPTS, ANSWERS, strict=False))


class Pipeline:
    """Simulated stages one after the other, as ``engine.target.local.LocalTarget`` runs real ones."""

    def __init__(self, info: TargetInfo, stages: Sequence[StageLike]) -> None:
        self.info = info
        self._stages = stages

    def step(self, step: Step) -> StepResult:
        activations: Activations | None = None
        for stage in self._stages:
            activations = stage.forward(step, activations)
            computing = stage.computing()
            assert computing is not None
            computing.wait()
        assert activations is not None
        return StepResult(step.step_id, self._stages[-1].verify(activations), 0.0)


def _pipeline(checkpoint: Path, stages: int = 1, kv_bytes: int = 4 << 20, profile: PipelineProfile = QUICK) -> Pipeline:
    options = TargetOptions(
        str(checkpoint), stages, kv_bytes=kv_bytes, block_size=16, simulation=Simulation(profile, RECORDINGS)
    )
    info = describe_target(options, checkpoint)
    ranges = split_layers(info.spec.n_layers, stages)
    return Pipeline(info, [load_stage(options, checkpoint, layers, info) for layers in ranges])


def _texts(pipeline: Pipeline, method: str, **limits: int) -> list[list[int]]:
    engine = Engine(pipeline, SpeculatorPool(), SchedulerOptions(**limits))
    params = SamplingParams(max_tokens=60, stop_ids=(2,))
    numbers = [engine.submit(Request(prompt, params, method, 16)) for prompt in PROMPTS]
    written: dict[int, list[int]] = {number: [] for number in numbers}
    while engine.scheduler.has_work:
        for number, event in engine.step():
            written[number] += event.token_ids
    return [written[number] for number in numbers]


def _wanted() -> list[list[int]]:
    made_up = Answers(320, (2,))
    params = SamplingParams(stop_ids=(2,))
    return ANSWERS + [made_up.to(prompt, params).part(0, 60) for prompt in PROMPTS[4:]]


@pytest.mark.parametrize("method", ["autoregressive", "pld", "suffix", "pld+suffix"])
@pytest.mark.parametrize(("stages", "max_sequences"), [(1, 1), (2, 3), (8, 6)])
def test_the_text_is_the_known_one_whatever_the_method_batch_and_stages(
    tiny_checkpoint: Path, method: str, stages: int, max_sequences: int
) -> None:
    assert _texts(_pipeline(tiny_checkpoint, stages), method, max_sequences=max_sequences) == _wanted()


def test_sequences_that_lose_their_blocks_go_on_where_they_were(tiny_checkpoint: Path) -> None:
    roomy = _pipeline(tiny_checkpoint)
    per_block = (4 << 20) // roomy.info.n_blocks
    tight = _pipeline(tiny_checkpoint, kv_bytes=11 * per_block)
    engine = Engine(tight, SpeculatorPool())
    params = SamplingParams(max_tokens=60, stop_ids=(2,))
    numbers = [engine.submit(Request(prompt, params, "pld", 16)) for prompt in PROMPTS]
    written: dict[int, list[int]] = {number: [] for number in numbers}
    preemptions = 0
    while engine.scheduler.has_work:
        for number, event in engine.step():
            written[number] += event.token_ids
            preemptions += event.stats.preemptions if event.stats is not None else 0
    assert preemptions > 0
    assert list(written.values()) == _wanted()


def test_prompts_that_begin_alike_are_copied_block_by_block(tiny_checkpoint: Path) -> None:
    """Answers follow from the prompt that is read back from the cache: a token that was not copied shows."""
    engine = Engine(_pipeline(tiny_checkpoint, stages=2), SpeculatorPool())
    params = SamplingParams(max_tokens=30, stop_ids=(2,))
    begun = [5 + i % 200 for i in range(150)]
    found = 0
    for n in (150, 149, 100, 150):
        prompt = [*begun[:n], 9, 8]
        done = engine.complete(Request(prompt, params))
        assert done.token_ids == Answers(320, (2,)).to(prompt, params).part(0, 30)
        found += done.stats.cached_tokens
    assert found == 16 * (149 // 16) + 16 * (100 // 16) + 16 * (151 // 16)


def test_made_up_text_repeats_itself_enough_for_text_methods(tiny_checkpoint: Path) -> None:
    engine = Engine(_pipeline(tiny_checkpoint), SpeculatorPool())
    stats = engine.complete(Request(PROMPTS[5], SamplingParams(max_tokens=400), "suffix")).stats
    assert 1.2 < 400 / stats.target_forwards < 4.0


def test_methods_that_read_states_are_refused_by_name(tiny_checkpoint: Path) -> None:
    pipeline = _pipeline(tiny_checkpoint)
    assert pipeline.info.spec.family == SIMULATED
    engine = Engine(pipeline, SpeculatorPool())
    with pytest.raises(RequestError, match=r"'spectra-core': a simulated target has no states to read.*pld") as refused:
        engine.submit(Request(PROMPTS[0], SamplingParams(), "spectra-core"))
    assert refused.value.param == "method"


def test_log_probabilities_say_that_the_text_was_certain(tiny_checkpoint: Path) -> None:
    engine = Engine(_pipeline(tiny_checkpoint), SpeculatorPool())
    done = engine.complete(Request(PROMPTS[0], SamplingParams(max_tokens=5, logprobs=2)))
    assert done.logprobs is not None
    assert [(one.token_id, one.logprob) for one in done.logprobs] == [(token, 0.0) for token in ANSWERS[0][:5]]


def test_its_step_times_can_be_measured(tiny_checkpoint: Path) -> None:
    costs = measure(_pipeline(tiny_checkpoint, profile=PipelineProfile(2e-4, flat_sequences=1)))
    assert 1 in costs.curves
    assert costs.seconds(1, [1])[0] >= 2e-4


def test_a_step_takes_its_time_after_forward_has_returned() -> None:
    stage = SimulatedStage(PipelineProfile(base_s=0.05, stages=2), None, 8, 16)
    began = time.perf_counter()
    stage.forward(Step(0, [Work(0, 0, [5, 6], new_blocks=[0])], [SequenceStart(0, SamplingParams(), 2, Needs())]), None)
    assert stage.lateness.sleeps == 0
    assert stage.computing().wait() >= 0.05
    assert stage.lateness.sleeps == 1
    assert time.perf_counter() - began >= 0.05


def test_a_sleep_never_ends_before_its_deadline_and_counts_how_late_it_ended() -> None:
    sleep = DeadlineSleep()
    for _ in range(20):
        deadline = time.perf_counter() + 0.002
        sleep.until(deadline)
        assert time.perf_counter() >= deadline
    sleep.until(0.0)
    assert sleep.lateness.sleeps == 21
    assert sleep.lateness.worst >= sleep.lateness.mean >= 0.0


def test_a_stage_begins_when_the_wire_has_delivered() -> None:
    profile = PipelineProfile(0.0, link_latency_s=0.5, link_bytes_per_s=1e6, row_bytes=100_000)
    sender, receiver = Link(profile), Link(profile)
    first, second = sender.departure(1000.0, 2), sender.departure(1000.1, 1)
    assert receiver.arrival(first, 1000.0) == pytest.approx(1000.7)
    assert receiver.arrival(second, 1000.1) == pytest.approx(1000.8)  # the wire was busy until 1000.2
    assert receiver.arrival(first, 1001.0) == 1001.0  # it was there already
    assert receiver.arrival(None, 1000.0) == 1000.0  # from the router
    assert receiver.arrival(first, 5.0) == 5.0  # another machine's clock


def test_a_stage_forgets_what_ended(tiny_checkpoint: Path) -> None:
    pipeline = _pipeline(tiny_checkpoint, stages=2)
    _texts(pipeline, "pld")
    pipeline.step(Step(1 << 40, []))
    stages = pipeline._stages
    assert all(isinstance(stage, SimulatedStage) for stage in stages)
    assert [stage.n_sequences for stage in stages] == [0, 0]
