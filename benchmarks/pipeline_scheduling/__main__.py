"""How close do a router and its stages come to the ideal, and how much of tokens per forward becomes speed?

A real router works on real stage loops whose forward pass is a sleep (profile flat10), without Ray, HTTP or a model.

1. For every number of stages and of streams: steps of single sequences per second over the ideal, min(streams /
   (P x 10 ms), 2 / 10 ms); with one stream, the time of a step over the sum of its stages.
2. With answers that the default model writes: tokens per second of a method over those of autoregressive decoding, and
   this gain over the method's tokens per forward.

Ten minutes on an idle machine. Exit status 1: a share is below --goal. The last line of stdout is one JSON document.

    python -m benchmarks.pipeline_scheduling --out OUT
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from app.inputs.recordings import RecordedTurn
from app.inputs.simulation import profile_at
from app.reporting.plotting import colour, grid, label, save
from app.reporting.summaries import grouped
from benchmarks.pipeline_scheduling.measurement import measure_rates, random_prompts, router_on, sample_answers
from benchmarks.pipeline_scheduling.stages import ProfiledStages
from benchmarks.support.reporting import BenchmarkReport, table
from engine.scheduling.drafting import AUTOREGRESSIVE
from engine.simulated.answers import pack_recordings
from engine.simulated.profile import PipelineProfile

STREAMS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24, 32, 48, 64)
PROMPT, TOKENS = 32, 3500  # of the streams of part 1
SCHEDULING = ("stages", "streams", "steps_per_s", "ideal", "efficiency", "step_over_sum", "busy", "late_s")
SPECULATION = ("method", "streams", "tokens_per_s", "tokens_per_forward", "gain", "share")
Row = dict[str, Any]


def ideal(profile: PipelineProfile, n_stages: int, streams: int) -> float:
    """Return the steps of single sequences per second that the stages allow."""
    return min(streams / (n_stages * profile.base_s), profile.flat_sequences / profile.base_s)


async def measure_scheduling(
    profile: PipelineProfile, n_stages: int, counts: Sequence[int], seconds: float
) -> list[Row]:
    """Return the rows of part 1 for one number of stages."""
    with ProfiledStages(profile, n_stages) as stages:
        prompts = random_prompts(max(counts), PROMPT, stages.info.spec.vocab_size)
        asked = [(prompt, TOKENS) for prompt in prompts]
        async with router_on(stages, n_stages) as router:
            rows: list[Row] = []
            for n in counts:
                most = ideal(profile, n_stages, n)
                found = await measure_rates(router, stages, asked, n, AUTOREGRESSIVE, max(seconds, 12 * n / most), 0.5)
                row = asdict(found) | {"stages": n_stages, "ideal": most, "efficiency": found.steps_per_s / most}
                rows.append(row | {"step_over_sum": found.step_s / (n_stages * profile.base_s)})
                show(rows[-1], SCHEDULING)
            return rows


async def measure_speculation(
    profile: PipelineProfile,
    n_stages: int,
    counts: Sequence[int],
    methods: Sequence[str],
    seconds: float,
    turns: Sequence[RecordedTurn],
) -> list[Row]:
    """Return the rows of part 2."""
    asked = [(turn.prompt, len(turn.answer)) for turn in turns]
    recordings = pack_recordings((turn.prompt, turn.answer) for turn in turns)
    rows: list[Row] = []
    with ProfiledStages(profile, n_stages, recordings) as stages:
        async with router_on(stages, n_stages) as router:
            for n in counts:
                longest = max(seconds, 20 * n / ideal(profile, n_stages, n))
                without = 0.0
                for method in (AUTOREGRESSIVE, *methods):
                    found = await measure_rates(router, stages, asked, n, method, longest, 1.0)
                    without = without or found.tokens_per_s
                    gain, per_forward = found.tokens_per_s / without, found.tokens_per_s / found.steps_per_s
                    row = asdict(found) | {"tokens_per_forward": per_forward, "gain": gain}
                    rows.append(row | {"share": gain / per_forward})
                    show(rows[-1], SPECULATION)
    return rows


def show(row: Row, columns: Sequence[str]) -> None:
    """Print a row as it is measured."""
    print(", ".join(f"{name} {shown(row[name])}" for name in columns), flush=True)


def shown(value: Any) -> str:
    """Return a value of a row as text."""
    if isinstance(value, list):
        return " ".join(map(shown, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def misses(scheduling: Sequence[Row], speculation: Sequence[Row], goal: float) -> list[str]:
    """Return in words which shares are below the goal."""
    short = [
        f"{row['stages']} stages, {row['streams']} streams: {row['efficiency']:.3f} of the ideal"
        for row in scheduling
        if row["streams"] > 1 and row["efficiency"] < goal
    ]
    short += [
        f"{row['stages']} stages, one stream: a step takes {row['step_over_sum']:.3f} times its stages"
        for row in scheduling
        if row["streams"] == 1 and row["step_over_sum"] > 2 - goal
    ]
    return short + [
        f"{row['method']}, {row['streams']} streams: {row['share']:.3f} of its tokens per forward"
        for row in speculation
        if row["share"] < goal
    ]


def draw(scheduling: Sequence[Mapping[str, Any]], speculation: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write ``pipeline-scheduling.png``."""
    figure, (left, right) = grid(1, 2, (11, 4.2))
    for i, (n_stages, rows) in enumerate(sorted(grouped(scheduling, lambda row: row["stages"]).items())):
        streams = [row["streams"] for row in rows]
        left.plot(streams, [row["ideal"] for row in rows], color=colour(i), linewidth=1, linestyle=":")
        left.plot(streams, [row["steps_per_s"] for row in rows], "o", color=colour(i), label=f"{n_stages} stages")
    for i, (method, rows) in enumerate(grouped(speculation, lambda row: row["method"]).items()):
        streams = [row["streams"] for row in rows]
        right.plot(streams, [row["gain"] for row in rows], "o-", color=colour(i), label=method)
        right.plot(streams, [row["tokens_per_forward"] for row in rows], color=colour(i), linewidth=1, linestyle=":")
    label(left, "streams", "sequence-steps per second (dotted: ideal)")
    label(right, "streams", "tokens/s over autoregressive\n(dotted: tokens per forward)")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter("{x:g}")
        if axes.lines:
            axes.legend(fontsize=8)
    save(figure, folder / "pipeline-scheduling.png")


def main() -> int:
    """Measure and print; return the exit status."""
    uvloop.install()  # Serve's replicas run on it
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--profile", default="flat10", help="as spectra serve --simulate takes it")
    add("--stages", type=int, nargs="*", default=[4, 1, 2, 8], help="numbers of stages of part 1")
    add("--streams", type=int, nargs="+", default=STREAMS, help="numbers of streams of part 1")
    add("--seconds", type=float, default=4.0, help="each measurement takes at least so long")
    add("--methods", nargs="*", default=["pld", "suffix"], help="methods of part 2; none: no part 2")
    add("--method-streams", type=int, nargs="+", default=[1, 8, 32, 64])
    add("--method-stages", type=int, default=4)
    add("--goal", type=float, default=0.95, help="share below which the exit status is 1 (0.95)")
    add("--out", type=Path, help="folder for result.json, tables.md and the picture")
    arguments = parser.parse_args()
    profile, seconds = profile_at(arguments.profile), arguments.seconds
    scheduling: list[Row] = []
    for n in arguments.stages:
        scheduling += asyncio.run(measure_scheduling(profile, n, arguments.streams, seconds))
    speculation: list[Row] = []
    if arguments.methods:
        counts = arguments.method_streams
        turns = sample_answers(max(counts))
        found = measure_speculation(profile, arguments.method_stages, counts, arguments.methods, seconds, turns)
        speculation = asyncio.run(found)
    short = misses(scheduling, speculation, arguments.goal)
    for miss in short:
        print(f"below the goal of {arguments.goal:g}: {miss}")
    document = {"profile": asdict(profile), "scheduling": scheduling, "speculation": speculation, "misses": short}
    tables = [
        table(dict(zip(columns, columns, strict=True)), [{k: shown(row[k]) for k in columns} for row in rows])
        for columns, rows in ((SCHEDULING, scheduling), (SPECULATION, speculation))
    ]
    picture = partial(draw, scheduling, speculation)
    return BenchmarkReport(document, "\n\n".join(tables), bool(short), picture).publish(arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
