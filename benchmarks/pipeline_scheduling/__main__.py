"""Scheduling alone: a real router on real stage loops whose forward is a sleep (profile flat10).

1. For every number of stages and of streams: steps of single sequences per second against the ideal, min(streams /
   (P x 10 ms), 2 / 10 ms); the time of a step at one stream against the sum of the stages; busy share of the stages.
2. With recorded answers: tokens per second of a method against autoregressive decoding, over its tokens per forward.

No Ray, no HTTP, no model; stages are processes of their own behind Unix sockets. Ten minutes with the default numbers
of stages and streams. Leave the machine alone while it runs. Exit status 1: a figure fell short of --goal. The last
line of stdout is one JSON document.

    python -m benchmarks.pipeline_scheduling --answers LOGS.jsonl --plot docs/images/pipeline-scheduling.png
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from app.inputs.simulation import profile_at
from app.reporting.plotting import can_plot
from app.reporting.report import as_line
from benchmarks.pipeline_scheduling.measurement import Asked, StreamRates, rates, router_on
from benchmarks.pipeline_scheduling.plot import draw
from benchmarks.pipeline_scheduling.requests import made_up, recorded, sampled
from benchmarks.pipeline_scheduling.stages import ProfiledStages
from engine.scheduling.drafting import AUTOREGRESSIVE
from engine.simulated.answers import pack_recordings
from engine.simulated.profile import PipelineProfile

STREAMS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24, 32, 48, 64)
PROMPT, TOKENS = 32, 3500  # of the streams of part 1


def ideal(profile: PipelineProfile, n_stages: int, streams: int) -> float:
    """Steps of single sequences per second that the stages allow."""
    return min(streams / (n_stages * profile.base_s), profile.flat_sequences / profile.base_s)


async def throughput(profile: PipelineProfile, n_stages: int, counts: list[int], seconds: float) -> list[StreamRates]:
    """Part 1 for one number of stages."""
    with ProfiledStages(profile, n_stages) as stages:
        prompts = made_up(max(counts), PROMPT, stages.info.spec.vocab_size)
        asked = [(prompt, TOKENS) for prompt in prompts]
        async with router_on(stages, n_stages) as router:
            found = []
            for n in counts:
                longest = max(seconds, 12 / (ideal(profile, n_stages, n) / n))
                found.append(await rates(router, stages, asked, n, AUTOREGRESSIVE, longest, 0.5))
                print(line(found[-1], profile, n_stages), flush=True)
            return found


async def speculation(
    profile: PipelineProfile, n_stages: int, counts: list[int], methods: list[str], seconds: float, turns: list[Any]
) -> dict[str, list[StreamRates]]:
    """Part 2."""
    asked: list[Asked] = [(turn.prompt, len(turn.answer)) for turn in turns]
    recordings = pack_recordings((turn.prompt, turn.answer) for turn in turns)
    found: dict[str, list[StreamRates]] = {method: [] for method in (AUTOREGRESSIVE, *methods)}
    with ProfiledStages(profile, n_stages, recordings) as stages:
        async with router_on(stages, n_stages) as router:
            for n in counts:
                longest = max(seconds, 20 / (ideal(profile, n_stages, n) / n))
                for method in found:
                    found[method].append(await rates(router, stages, asked, n, method, longest, 1.0))
                    print(gain_line(found, method), flush=True)
    return found


def line(found: StreamRates, profile: PipelineProfile, n_stages: int) -> str:
    """One row of part 1."""
    wanted = ideal(profile, n_stages, found.streams)
    return (
        f"P={n_stages} streams {found.streams:3}: {found.steps_per_s:6.1f} steps/s, ideal {wanted:6.1f}, "
        f"efficiency {found.steps_per_s / wanted:.3f}, a step {found.step_s * 1e3:6.1f} ms, "
        f"busy {' '.join(f'{share:.2f}' for share in found.busy)}, sleeps {found.late_s * 1e6:.0f} us late"
    )


def gain_line(found: dict[str, list[StreamRates]], method: str) -> str:
    """The newest row of part 2."""
    now = found[method][-1]
    before = found[AUTOREGRESSIVE][len(found[method]) - 1]
    gain = now.tokens_per_s / before.tokens_per_s
    return (
        f"{method} streams {now.streams:3}: {now.tokens_per_s:6.1f} tokens/s, {now.tokens_per_step:.3f} tokens per "
        f"forward, gain {gain:.3f}, share {gain / now.tokens_per_step:.3f}"
    )


def report(
    profile: PipelineProfile, plain: dict[int, list[StreamRates]], with_drafts: dict[str, list[StreamRates]]
) -> dict[str, Any]:
    """The JSON document."""
    base = with_drafts.get(AUTOREGRESSIVE, [])
    return {
        "profile": asdict(profile),
        "throughput": [
            asdict(one) | {"stages": n, "efficiency": one.steps_per_s / ideal(profile, n, one.streams)}
            for n, every in plain.items()
            for one in every
        ],
        "one_stream_step_over_sum": {
            n: one.step_s / (n * profile.base_s) for n, every in plain.items() for one in every if one.streams == 1
        },
        "speculation": [
            asdict(one)
            | {"tokens_per_forward": one.tokens_per_step, "gain": one.tokens_per_s / before.tokens_per_s}
            | {"share": one.tokens_per_s / before.tokens_per_s / one.tokens_per_step}
            for method, every in with_drafts.items()
            if method != AUTOREGRESSIVE
            for one, before in zip(every, base, strict=True)
        ],
    }


def misses(found: dict[str, Any], goal: float) -> list[str]:
    """What falls short of the goal, in words."""
    short = [
        f"P={one['stages']}, {one['streams']} streams: {one['efficiency']:.3f} of the ideal"
        for one in found["throughput"]
        if one["streams"] > 1 and one["efficiency"] < goal
    ]
    short += [
        f"P={n}, one stream: a step takes {ratio:.3f} times its stages"
        for n, ratio in found["one_stream_step_over_sum"].items()
        if ratio > 2 - goal
    ]
    return short + [
        f"{one['method']}, {one['streams']} streams: {one['share']:.3f} of its tokens per forward"
        for one in found["speculation"]
        if one["share"] < goal
    ]


def main() -> int:
    """Measure and print."""
    uvloop.install()  # Serve's replicas run on it
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="flat10", help="as spectra serve --simulate takes it")
    parser.add_argument("--stages", type=int, nargs="*", default=[4, 1, 2, 8], help="numbers of stages of part 1")
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS, help="numbers of streams of part 1")
    parser.add_argument("--seconds", type=float, default=4.0, help="each measurement takes at least so long")
    parser.add_argument("--methods", nargs="*", default=["pld", "suffix"], help="methods of part 2; none: no part 2")
    parser.add_argument("--method-streams", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--method-stages", type=int, default=4)
    parser.add_argument("--answers", type=Path, help="JSON lines of conversations; else the default model writes some")
    parser.add_argument("--source", help="only lines of --answers of which 'source' is this")
    parser.add_argument("--goal", type=float, default=0.95, help="share below which the exit status is 1 (0.95)")
    parser.add_argument("--plot", type=Path, help="PNG file")
    arguments = parser.parse_args()
    profile = profile_at(arguments.profile)
    plain = {
        n: asyncio.run(throughput(profile, n, list(arguments.streams), arguments.seconds)) for n in arguments.stages
    }
    with_drafts: dict[str, list[StreamRates]] = {}
    if arguments.methods:
        most = max(arguments.method_streams)
        turns = recorded(arguments.answers, arguments.source) if arguments.answers else sampled(most)
        with_drafts = asyncio.run(
            speculation(
                profile, arguments.method_stages, arguments.method_streams, arguments.methods, arguments.seconds, turns
            )
        )
    if arguments.plot and can_plot():
        draw(profile, plain, with_drafts, arguments.plot)
    found = report(profile, plain, with_drafts)
    for miss in (short := misses(found, arguments.goal)):
        print(f"below the goal of {arguments.goal:g}: {miss}")
    print(as_line(found))
    return 1 if short else 0


if __name__ == "__main__":
    raise SystemExit(main())
