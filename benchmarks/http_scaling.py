"""What HTTP costs where a step takes long: requests to ``spectra serve --simulate`` against the same router without it.

Both sides get the same streamed requests, on the same simulated stages; the other side has neither Ray nor HTTP. All
requests of a run start together, one per stream; the figure is tokens per second until the last has ended. Two
minutes; leave the machine alone meanwhile. The last line of stdout is one JSON document.

    python -m benchmarks.http_scaling [--profile flat10 --stages 2] [--methods autoregressive,suffix]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from typing import Any

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from app.inputs.simulation import profile_at
from app.reporting.report import as_line
from benchmarks.http_speed import at_concurrency
from benchmarks.pipeline_scheduling.measurement import router_on
from benchmarks.pipeline_scheduling.requests import made_up
from benchmarks.pipeline_scheduling.stages import ProfiledStages
from benchmarks.support.server_process import ServerProcess
from deployments.router.router import Router
from engine.model.loader import load_spec
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.simulated.profile import PipelineProfile

PROMPT = 32  # tokens
Rates = dict[tuple[str, int], float]  # method, streams -> tokens per second


async def bare(profile: PipelineProfile, stages: int, runs: Sequence[tuple[str, int]], n: int) -> Rates:
    """The router alone."""
    found: Rates = {}
    with ProfiledStages(profile, stages) as pipeline:
        async with router_on(pipeline, stages) as router:
            for method, streams in runs:
                prompts = made_up(streams, PROMPT, pipeline.info.spec.vocab_size)
                await _together(router, prompts, method, 4)
                began = time.perf_counter()
                tokens = await _together(router, prompts, method, n)
                found[method, streams] = tokens / (time.perf_counter() - began)
    return found


async def _together(router: Router, prompts: Sequence[list[int]], method: str, n: int) -> int:
    """Tokens that all prompts' answers have together."""

    async def one(prompt: list[int]) -> int:
        request = Request(prompt, SamplingParams(max_tokens=n), method)
        return sum([len(event.token_ids) async for event in router.stream(request)])

    return sum(await asyncio.gather(*map(one, prompts)))


def over_http(profile: str, stages: int, runs: Sequence[tuple[str, int]], n: int) -> Rates:
    """The same through the server."""
    vocab_size = load_spec(model_path(DEFAULT_MODEL)).vocab_size
    flags = ("--simulate", profile, "--stages", str(stages), "--method", "autoregressive", "--prefix-cache", "false")
    found: Rates = {}
    with ServerProcess(DEFAULT_MODEL, flags) as server:
        for method, streams in runs:
            prompts = made_up(streams, PROMPT, vocab_size)
            asyncio.run(at_concurrency(server, prompts, streams, 4, True, method))
            rate, tokens, _ = asyncio.run(at_concurrency(server, prompts, streams, n, True, method))
            assert tokens == n * streams, f"{tokens} tokens came, {n * streams} were asked for"
            found[method, streams] = rate
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="flat10", help="as spectra serve --simulate takes it")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--methods", default="autoregressive,suffix")
    parser.add_argument("--max-tokens", type=int, default=128)
    arguments = parser.parse_args()
    runs = [(method, n) for method in arguments.methods.split(",") for n in arguments.streams]
    n = arguments.max_tokens
    alone = asyncio.run(bare(profile_at(arguments.profile), arguments.stages, runs, n))
    http = over_http(arguments.profile, arguments.stages, runs, n)
    rows: list[dict[str, Any]] = []
    for (method, streams), rate in http.items():
        ratio = rate / alone[method, streams]
        rows.append(
            {"method": method, "streams": streams, "http": rate, "router_alone": alone[method, streams], "ratio": ratio}
        )
        print(f"{method}, {streams} streams: {rate:.1f} tokens/s over HTTP, {alone[method, streams]:.1f} without, "
              f"ratio {ratio:.3f}")  # fmt: skip
    print(as_line({"profile": arguments.profile, "stages": arguments.stages, "runs": rows}))


if __name__ == "__main__":
    main()
