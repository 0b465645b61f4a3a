"""Several times the capacity: which requests are refused, how long do the admitted ones wait, is anything lost?

A simulated target (sleeping stages) behind the real server: real HTTP, router, scheduler, channels. First a closed loop
with as many clients as sequences finds the capacity (requests per second); then open loops with Poisson arrivals at
--factors times that rate. Per factor: admitted and refused (429) requests, the Retry-After of the refusals, TTFT of the
admitted (p50, p99, from the intended arrival), tokens per second. Takes some --seconds per factor and as many again.

Exit status 1: an admitted request failed, a text differed from another answer to the same question, TTFT p99 of the
admitted was above 1.5 times --max-wait, or at a factor above 1.5 no request was refused or a refusal had no
Retry-After. The last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from app.inputs.default_model import DEFAULT_MODEL
from app.load.stream import TOO_MANY
from benchmarks.support.reporting import BenchmarkReport, heading, row
from benchmarks.support.server_process import ServerProcess, load

SLACK = 1.5  # expected waits are expectations
HEAD = ("x capacity", "sent/s", "admitted", "refused (429)", "Retry-After s p50/max", "TTFT s p50/p99", "output tok/s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    parser.add_argument("--simulate", default="flat10", help="profile of the stages (default: flat10)")
    parser.add_argument("--stages", type=int, default=4, help="of the pipeline (default: 4)")
    parser.add_argument("--sequences", type=int, default=32, help="decoded side by side (default: 32)")
    parser.add_argument("--max-wait", type=float, default=4.0, help="seconds of expected wait admitted (default: 4)")
    parser.add_argument("--max-tokens", type=int, default=50, help="of an answer (default: 50)")
    parser.add_argument("--method", default="autoregressive", help="(default: autoregressive)")
    parser.add_argument("--seconds", type=float, default=30.0, help="per factor (default: 30)")
    parser.add_argument("--factors", type=numbers, default="0.8,1.5,4", help="times the capacity (default: 0.8,1.5,4)")


def numbers(text: str) -> list[float]:
    """Numbers with commas between."""
    return [float(part) for part in text.split(",")]


def run(settings: argparse.Namespace) -> BenchmarkReport:
    """Start a server, measure its capacity, then each factor."""
    flags = ["--simulate", settings.simulate, "--stages", settings.stages, "--max-sequences", settings.sequences]
    flags += ["--max-wait", settings.max_wait, "--method", settings.method, "--max-waiting", 100_000]
    with ServerProcess(DEFAULT_MODEL, list(map(str, flags))) as server:
        document = asyncio.run(_measure(settings, server.url))
    shown = "\n".join([heading(HEAD), *map(_line, document["rows"])])
    return BenchmarkReport(document, shown, bool(document["wrong"]))


async def _measure(settings: argparse.Namespace, url: str) -> dict[str, Any]:
    common = ("--max-tokens", settings.max_tokens, "--temperature", 0.8, "--repeat-check", 64, "--ignore-eos")
    closed = ("--concurrency", settings.sequences, "--duration", settings.seconds, "--warmup", 8)
    found = await load(url, *closed, *common)
    capacity = found["requests_per_s"]
    print(
        f"capacity: {capacity:.2f} requests/s, {found['output_tokens_per_s']:.0f} tokens/s\n\n{heading(HEAD)}",
        flush=True,
    )
    rows = []
    for factor in settings.factors:
        rate = round(factor * capacity, 3)
        arrivals = ("--rate", rate, "--arrivals", "poisson", "--duration", settings.seconds)
        rows.append(row_of(factor, rate, await load(url, *arrivals, *common)))
        print(_line(rows[-1]), flush=True)
    wrong = [what for one in rows for what in wrong_with(one, SLACK * settings.max_wait)]
    return {"capacity_requests_per_s": capacity, "rows": rows, "wrong": wrong}


def row_of(factor: float, rate: float, found: dict[str, Any]) -> dict[str, Any]:
    """A factor's figures, from the document of ``spectra load``; ``rate`` in requests per second."""
    refused = found["errors"].get(TOO_MANY, 0)
    waits, ttft = found["retry_after"] or {}, found["ttft"] or {}
    return {
        "factor": factor,
        "rate": round(rate, 2),
        "admitted": found["ok"],
        "refused": refused,
        "retry_after_p50": waits.get("p50"),
        "retry_after_max": waits.get("max"),
        "retry_after_told": waits.get("n", 0),
        "ttft_p50": ttft.get("p50"),
        "ttft_p99": ttft.get("p99"),
        "output_tokens_per_s": found["output_tokens_per_s"],
        "failed_otherwise": found["failed"] - refused,
        "errors": found["errors"],
        "differing": found["identity"]["differing"][:3],
    }


def _line(found: dict[str, Any]) -> str:
    names = ("retry_after_p50", "retry_after_max", "ttft_p50", "ttft_p99", "output_tokens_per_s")
    wait, longest, ttft, ttft_p99, speed = ("-" if found[name] is None else f"{found[name]:.2f}" for name in names)
    counts = (found["factor"], found["rate"], found["admitted"], found["refused"])
    return row([*counts, f"{wait} / {longest}", f"{ttft} / {ttft_p99}", speed])


def wrong_with(found: dict[str, Any], longest_wait: float) -> list[str]:
    """Everything that must not be; ``longest_wait`` bounds TTFT p99 of the admitted, in seconds."""
    wrong = []
    if found["failed_otherwise"]:
        wrong.append(f"{found['failed_otherwise']} requests failed: {found['errors']}")
    if found["differing"]:
        wrong.append(f"texts differ: {found['differing']}")
    if found["factor"] > 1.5 and not found["refused"]:
        wrong.append("no request was refused")
    if (found["ttft_p99"] or 0.0) > longest_wait:
        wrong.append(f"TTFT p99 is {found['ttft_p99']:.1f} s, more than {longest_wait:.1f}")
    if found["retry_after_told"] < found["refused"]:
        wrong.append(f"{found['refused'] - found['retry_after_told']} refusals without Retry-After")
    return [f"at {found['factor']} x capacity: {what}" for what in wrong]
