"""The model against the simulator: the same clusters, predicted and measured by a real router on sleeping stages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.planning.cluster import Cluster
from benchmarks.pipeline_scheduling.measurement import rates, router_on
from benchmarks.pipeline_scheduling.requests import made_up
from benchmarks.pipeline_scheduling.stages import ProfiledStages
from engine.sampling.params import SamplingParams
from engine.scheduling.drafting import AUTOREGRESSIVE
from engine.simulated.answers import RecordedAnswers
from engine.simulated.profile import PROFILES, PipelineProfile
from speculators.testing import AlwaysWrong

PROMPT, TOKENS = 32, 3500
WRONG = "always-wrong"  # drafts trees of a known size, none of which is accepted: rows without tokens

TEN_GBIT, LATENCY_S = 1.25e9, 5e-5  # bytes and seconds


@dataclass(frozen=True, slots=True)
class ClusterCase:
    """One cluster and what runs on it."""

    name: str
    profile: PipelineProfile
    stages: int
    nodes: int
    streams: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """One prediction and its measurement, steps of single sequences per second."""

    case: str
    stages: int
    nodes: int
    streams: int
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured / self.predicted


def cases() -> list[ClusterCase]:
    """Stages, batch, width of trees, links."""
    paper, flat = PROFILES["70b-h100x4"], PROFILES["flat10"]
    wired = replace(paper, link_bytes_per_s=TEN_GBIT, link_latency_s=LATENCY_S)
    return [
        *(ClusterCase("flat10", flat, stages, 0, (1, 4, 16, 64)) for stages in (1, 2, 4, 8)),
        ClusterCase("70B", paper, 4, 0, (1, 4, 16, 64)),
        ClusterCase("70B, trees", paper, 4, 16, (1, 16, 64)),
        ClusterCase("70B, wide trees", paper, 4, 64, (1, 4, 16, 64)),
        ClusterCase("70B, wide trees, 10 Gbit/s", wired, 4, 64, (1, 4, 16, 64)),
    ]


def calibrate(seconds: float) -> tuple[float, float]:
    """(hop_s, turn_s): what software adds to a step, from one stream on one stage and on four."""
    flat = PROFILES["flat10"]
    one, four = (
        1 / asyncio.run(measure(ClusterCase("", flat, stages, 0, (1,)), seconds))[0] - stages * flat.base_s
        for stages in (1, 4)
    )
    hop_s = max(0.0, (four - one) / 3)
    return hop_s, max(0.0, one - hop_s)


def check(case: ClusterCase, overheads: tuple[float, float], seconds: float) -> list[Checked]:
    """Predict and measure every number of streams of a case."""
    cluster = Cluster(case.profile, case.stages, *overheads)
    measured = asyncio.run(measure(case, seconds))
    return [
        Checked(case.name, case.stages, case.nodes, n, cluster.decoding(n, case.nodes).steps_per_s, steps)
        for n, steps in zip(case.streams, measured, strict=True)
    ]


async def measure(case: ClusterCase, seconds: float) -> Sequence[float]:
    """Steps of single sequences per second for every number of streams."""
    with ProfiledStages(case.profile, case.stages) as stages:
        spec = stages.info.spec
        prompts = made_up(max(case.streams), PROMPT, spec.vocab_size)
        texts = RecordedAnswers(spec.vocab_size, spec.eos_ids)
        known = {tuple(p): texts.to(p, SamplingParams()).part(0, TOKENS) for p in prompts}
        extra = {WRONG: lambda options: AlwaysWrong(known, case.nodes)}
        method = WRONG if case.nodes else AUTOREGRESSIVE
        asked = [(prompt, TOKENS) for prompt in prompts]
        async with router_on(stages, case.stages, extra) as router:
            found = []
            for n in case.streams:
                cycle_s = Cluster(case.profile, case.stages).decoding(n, case.nodes).step_s
                longest = max(seconds, 10 * cycle_s)
                found.append((await rates(router, stages, asked, n, method, longest, 2 * cycle_s)).steps_per_s)
            return found
