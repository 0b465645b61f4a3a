"""What does HTTP cost? A real ``spectra serve`` against the same engine offline, on one machine in one run.

1. One stream, each method: tokens per second over HTTP and of the engine in this process, prompt by prompt in turn.
2. One and 16 streams without speculation: tokens per second, and CPU time per event of ingress, router, proxy, stage.

Four minutes on an idle machine; the last line of stdout is one JSON document.

    python -m benchmarks.http_speed --prompts DIR [--model DIR] [--methods autoregressive spectra-core]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import torch
from tqdm import tqdm

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from app.inputs.prompts import encode_chat
from app.inputs.tokenizers import load_tokenizer
from benchmarks.resilience.observation import sum_by_part
from benchmarks.support.prompt_sets import questions
from benchmarks.support.reporting import BenchmarkReport, table
from benchmarks.support.server_process import ServerProcess
from engine.loop import Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.drafting import AUTOREGRESSIVE
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from speculators.pool import SpeculatorPool

Row = dict[str, Any]
PARTS = {"ingress": "ingress", "router": "router", "stages": "stage", "HAProxy": "proxy"}


def cpu_seconds(server: ServerProcess) -> dict[str, float]:
    """Return the CPU time so far of every part of the server in ``PARTS``."""
    spent = sum_by_part(server.pid, lambda process: sum(process.cpu_times()[:2]))  # user and system
    return {name: spent.get(part, 0.0) for part, name in PARTS.items()}


async def ask(
    session: aiohttp.ClientSession, server: ServerProcess, prompt: Sequence[int], method: str, n: int
) -> tuple[int, int]:
    """Send one streamed request; return its tokens and events."""
    body: dict[str, Any] = {
        "model": server.model,
        "prompt": list(prompt),
        "max_tokens": n,
        "temperature": 0,
        "ignore_eos": True,
        "speculative": {"method": method},
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with session.post(f"{server.url}/v1/completions", json=body) as response:
        response.raise_for_status()
        events, tokens = 0, 0
        async for line in response.content:
            if line.startswith(b"data: {"):
                events += 1
                if b'"usage"' in line:
                    tokens = (json.loads(line[6:]).get("usage") or {}).get("completion_tokens", tokens)
        return tokens, events


async def at_concurrency(
    server: ServerProcess, prompts: Sequence[Sequence[int]], concurrency: int, n: int, method: str
) -> tuple[float, int, int]:
    """Send all prompts, so many at a time; return tokens per second, tokens and events."""
    waiting = list(prompts)[::-1]
    totals = [0, 0]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def work() -> None:
            while waiting:
                tokens, events = await ask(session, server, waiting.pop(), method, n)
                totals[0] += tokens
                totals[1] += events

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(concurrency)))
        return totals[0] / (time.perf_counter() - began), totals[0], totals[1]


def measure_overhead(
    server: ServerProcess, target: LocalTarget, prompts: Sequence[list[int]], method: str, n: int
) -> Row:
    """Return a row of one stream: HTTP and offline in turn, prompt by prompt; total time, and the median ratio."""
    engine = Engine(target, SpeculatorPool(), SchedulerOptions(prefix_cache=False))
    params = SamplingParams(max_tokens=n)
    offline: list[float] = []
    http: list[float] = []
    for prompt in tqdm([prompts[0], *prompts], desc=method, file=sys.stderr):
        began = time.perf_counter()
        done = engine.complete(Request(prompt, params, method))
        offline.append(time.perf_counter() - began)
        began = time.perf_counter()
        _, tokens, _ = asyncio.run(at_concurrency(server, [prompt], 1, n, method))
        http.append(time.perf_counter() - began)
        assert tokens == len(done.token_ids), "HTTP and offline must write the same text"
    del offline[0], http[0]  # the first was the warm-up
    total = n * len(http)
    return {
        "method": method,
        "offline_tokens_per_s": round(total / sum(offline), 1),
        "http_tokens_per_s": round(total / sum(http), 1),
        "ratio": round(sum(offline) / sum(http), 3),
        "median_ratio": round(statistics.median(a / b for a, b in zip(offline, http, strict=True)), 3),
    }


def measure_load(server: ServerProcess, prompts: Sequence[list[int]], n: int) -> list[Row]:
    """Return a row each for one and 16 concurrent streams: tokens per second, and CPU time of every part per event."""
    rows: list[Row] = []
    for concurrency, some in ((1, prompts[:8]), (16, [*prompts, *prompts])):
        before = cpu_seconds(server)
        rate, _, events = asyncio.run(at_concurrency(server, some, concurrency, n, AUTOREGRESSIVE))
        after = cpu_seconds(server)
        cpu = {f"{part}_us": round((after[part] - before[part]) / events * 1e6) for part in after}
        rows.append({"streams": concurrency, "tokens_per_s": round(rate, 1)} | cpu)
    return rows


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=model_path, default=DEFAULT_MODEL, help="(default: %(default)s)")
    parser.add_argument("--prompts", type=Path, required=True, help="folder with spec_bench, gsm8k and humaneval")
    parser.add_argument("--methods", nargs="+", default=[AUTOREGRESSIVE, "pld", "spectra-core"], help="for part 1")
    parser.add_argument("--max-tokens", type=int, default=128, help="of an answer (default: 128)")
    parser.add_argument("--out", type=Path, help="folder for result.json and tables.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer, n = load_tokenizer(arguments.model), arguments.max_tokens
    turns = [question.text for kind in questions(arguments.prompts, 8).values() for question in kind]
    prompts = [encode_chat(tokenizer, [{"role": "user", "content": turn}])[:512] for turn in turns]
    target = LocalTarget.load(TargetOptions(str(arguments.model)), arguments.model)
    with ServerProcess(str(arguments.model), ("--prefix-cache", "false")) as server:
        parts = {
            "over_http": [measure_overhead(server, target, prompts, method, n) for method in arguments.methods],
            "concurrent": measure_load(server, prompts, n),
        }
    tables = "\n\n".join(table({name: name for name in rows[0]}, rows) for rows in parts.values())
    print(tables)
    return BenchmarkReport({"model": arguments.model.name, **parts}, tables, failed=False).publish(arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
