"""A real router on simulated stages, prompts for its streams, and their rates while they run steadily."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise

from tqdm import tqdm

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from app.inputs.prompts import encode_chat
from app.inputs.recordings import RecordedTurn
from app.inputs.tokenizers import load_tokenizer
from app.speculation.calibration_prompts import PROMPTS
from benchmarks.pipeline_scheduling.stages import ProfiledStages, StageReport
from deployments.options import RouterOptions
from deployments.pipeline.connection import Pipeline, measure_pipeline
from deployments.router.drafting import InlineDraftClient
from deployments.router.lane_connection import TargetClient
from deployments.router.router import Router
from engine.loop import Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool

LEAST_ANSWER = 300  # tokens; shorter ones would measure prefills
BATCH, NODES = 16, 4  # answers that are sampled together, and drafted nodes of each: fast on a CPU
MOST_STREAMS = 64
BURST_S = 0.002  # events so close together came from one step
Asked = tuple[list[int], int]  # prompt, most tokens of the answer


@dataclass(frozen=True, slots=True)
class StreamRates:
    """Rates over all of ``streams`` streams."""

    streams: int
    method: str
    steps_per_s: float  # steps of single sequences
    tokens_per_s: float
    step_s: float  # mean time between two events of one stream
    busy: list[float]  # share of the time that every stage worked, first to last
    late_s: float  # mean lateness of the stages' sleeps


@asynccontextmanager
async def router_on(stages: ProfiledStages, n_stages: int) -> AsyncIterator[Router]:
    """Run a router as a server does, with measured step times."""
    pipeline = await Pipeline.connect(stages.endpoints)
    try:
        costs = await measure_pipeline(pipeline, stages.info)
    finally:
        pipeline.close()
    pool = SpeculatorPool(SpeculatorOptions(step_costs=costs))
    limits = SchedulerOptions(max_sequences=MOST_STREAMS, n_micro_batches=n_stages, prefix_cache=False)
    options = RouterOptions("simulated", scheduler=limits, max_wait=None)
    drafter = InlineDraftClient(pool, stages.info.spec.vocab_size)
    target = TargetClient("Target", lambda: Pipeline.connect(stages.endpoints))
    router = Router(options, stages.info, drafter, [target], costs=costs)
    router.start()
    gc.collect()
    gc.freeze()
    try:
        yield router
    finally:
        await router.close()


class PromptStreams:
    """``n`` streams, each of which submits one prompt after the other until ``stop``."""

    def __init__(self, router: Router, asked: Sequence[Asked], n: int, method: str) -> None:
        self._router = router
        self._asked = asked
        self._method = method
        self.events: list[tuple[float, int, int]] = []  # moment, stream, tokens
        self._tasks = [asyncio.create_task(self._run(i, n)) for i in range(n)]
        self._ready = asyncio.Event()
        self._begun: set[int] = set()
        self._n = n

    async def _run(self, stream: int, n: int) -> None:
        turn = stream
        while True:
            prompt, tokens = self._asked[turn % len(self._asked)]
            params = SamplingParams(max_tokens=tokens)
            request = Request(prompt, params, self._method)
            async for event in self._router.stream(request):
                self._note(stream, len(event.token_ids))
            turn += n

    def _note(self, stream: int, n_tokens: int) -> None:
        self.events.append((time.perf_counter(), stream, n_tokens))
        self._begun.add(stream)
        if len(self._begun) == self._n:
            self._ready.set()

    async def all_begun(self) -> None:
        """Wait until every stream has its first token.

        Raises:
            Exception: what a stream failed with.
        """
        waiting = asyncio.create_task(self._ready.wait())
        done, _ = await asyncio.wait([waiting, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {waiting}:
            task.result()

    async def stop(self) -> None:
        """End all streams; raise the exception of one that failed."""
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


async def measure_rates(
    router: Router, stages: ProfiledStages, asked: Sequence[Asked], n: int, method: str, seconds: float, settle: float
) -> StreamRates:
    """Measure ``n`` streams for ``seconds``, beginning ``settle`` seconds after all have their first token."""
    streams = PromptStreams(router, asked, n, method)
    try:
        await streams.all_begun()
        await asyncio.sleep(settle)
        before, began = stages.reports(), time.perf_counter()
        await asyncio.sleep(seconds)
        after, ended = stages.reports(), time.perf_counter()
    finally:
        await streams.stop()
    while (await router.state())["running"]:
        await asyncio.sleep(0.01)
    events = [event for event in streams.events if began <= event[0] <= ended]
    steps_per_s, tokens_per_s = per_second(events)
    busy, late_s = _busy(before, after, ended - began), _late(before, after)
    return StreamRates(n, method, steps_per_s, tokens_per_s, _between(events), busy, late_s)


def per_second(events: Sequence[tuple[float, int, int]]) -> tuple[float, float]:
    """Return events and tokens per second: from the first burst, which is not counted, to the last, which is.

    A step brings a burst of events; counting both ends, or neither, would be off by one of them.
    """
    first = next((i + 1 for i, (one, two) in enumerate(pairwise(events)) if two[0] - one[0] > BURST_S), None)
    assert first is not None, "one step is no rate: measure longer"
    span = events[-1][0] - events[first - 1][0]
    counted = events[first:]
    return len(counted) / span, sum(tokens for _, _, tokens in counted) / span


def _between(events: Sequence[tuple[float, int, int]]) -> float:
    """Return the mean seconds between two events of one stream."""
    by_stream: dict[int, list[float]] = {}
    for moment, stream, _ in events:
        by_stream.setdefault(stream, []).append(moment)
    spans = [(moments[-1] - moments[0], len(moments) - 1) for moments in by_stream.values() if len(moments) > 1]
    return sum(span for span, _ in spans) / max(1, sum(n for _, n in spans))


def _busy(before: Sequence[StageReport], after: Sequence[StageReport], seconds: float) -> list[float]:
    return [(b.busy_s - a.busy_s) / seconds for a, b in zip(before, after, strict=True)]


def _late(before: Sequence[StageReport], after: Sequence[StageReport]) -> float:
    sleeps = sum(b.lateness.sleeps - a.lateness.sleeps for a, b in zip(before, after, strict=True))
    total = sum(b.lateness.total - a.lateness.total for a, b in zip(before, after, strict=True))
    return total / max(1, sleeps)


def random_prompts(n: int, length: int, vocab_size: int) -> list[list[int]]:
    """Return ``n`` different prompts of ``length`` random tokens."""
    chance = random.Random(n)
    return [[chance.randrange(5, vocab_size) for _ in range(length)] for _ in range(n)]


def sample_answers(n: int) -> list[RecordedTurn]:
    """Return ``n`` prompts with the default model's answers at temperature 0.8; takes minutes."""
    model = model_path(DEFAULT_MODEL)
    tokenizer = load_tokenizer(model)
    engine = Engine(LocalTarget.load(TargetOptions(str(model)), model), SpeculatorPool())
    chats = [[{"role": "user", "content": PROMPTS[i % len(PROMPTS)]}] for i in range(n)]
    prompts = [encode_chat(tokenizer, chat) for chat in chats]
    params = [SamplingParams(max_tokens=LEAST_ANSWER, temperature=0.8, seed=i) for i in range(n)]
    jobs = [Request(*job, "suffix", NODES) for job in zip(prompts, params, strict=True)]
    done = tqdm(engine.run(jobs, BATCH), "the default model answers", n, file=sys.stderr)
    return [RecordedTurn(i, 0, prompts[i], completion.token_ids, i, "sampled") for i, completion in done]
