"""What HTTP costs: a real ``spectra serve`` against the same engine offline, one machine, one run.

1. Concurrency 1, streamed, each method: tokens per second over HTTP against ``spectra generate``'s engine in this
   process, prompt by prompt in turn, same thread count.
2. Autoregressive, not streamed: tokens per second at concurrency 16 against concurrency 1.
3. Streamed at concurrency 16: tokens per second, and CPU seconds per event of ingress, router, proxy and stage.

Five minutes; leave the machine alone meanwhile. The last line of stdout is one JSON document.

    python -m benchmarks.http_speed --prompts DIR [--model DIR] [--methods autoregressive,spectra-core]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import torch
from tqdm import tqdm

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from app.inputs.prompts import encode_chat
from app.inputs.tokenizers import load_tokenizer
from app.reporting.report import as_line
from benchmarks.resilience.observation import part_of, processes, title
from benchmarks.support.prompt_sets import questions
from benchmarks.support.server_process import ServerProcess
from engine.loop import Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from speculators.pool import SpeculatorPool

PARTS = {"ingress": "ingress", "router": "router", "stages": "stage", "HAProxy": "proxy"}


def cpu_seconds(server: ServerProcess) -> dict[str, float]:
    """CPU time so far of every part of the server in ``PARTS``."""
    spent = dict.fromkeys(PARTS.values(), 0.0)
    for process in processes(server.pid):
        part = PARTS.get(part_of(title(process)))
        with contextlib.suppress(psutil.Error):
            if part is not None:
                times = process.cpu_times()
                spent[part] += times.user + times.system
    return spent


async def ask(
    session: aiohttp.ClientSession, server: ServerProcess, prompt: Sequence[int], method: str, n: int, stream: bool
) -> tuple[int, int]:
    """One request; returns (tokens, events)."""
    body: dict[str, Any] = {
        "model": server.model,
        "prompt": list(prompt),
        "max_tokens": n,
        "temperature": 0,
        "ignore_eos": True,
        "speculative": {"method": method},
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    async with session.post(f"{server.url}/v1/completions", json=body) as response:
        response.raise_for_status()
        if not stream:
            usage = (await response.json())["usage"]
            return int(usage["completion_tokens"]), 1
        events, tokens = 0, 0
        async for line in response.content:
            if line.startswith(b"data: {"):
                events += 1
                if b'"usage"' in line:
                    tokens = (json.loads(line[6:]).get("usage") or {}).get("completion_tokens", tokens)
        return tokens, events


async def at_concurrency(
    server: ServerProcess, prompts: Sequence[Sequence[int]], concurrency: int, n: int, stream: bool, method: str
) -> tuple[float, int, int]:
    """All prompts, so many at a time: (tokens per second, tokens, events)."""
    waiting = list(prompts)[::-1]
    totals = [0, 0]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def work() -> None:
            while waiting:
                tokens, events = await ask(session, server, waiting.pop(), method, n, stream)
                totals[0] += tokens
                totals[1] += events

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(concurrency)))
        return totals[0] / (time.perf_counter() - began), totals[0], totals[1]


def one_by_one(
    server: ServerProcess, target: LocalTarget, prompts: Sequence[list[int]], method: str, n: int
) -> dict[str, float]:
    """Streamed HTTP and offline in turn, prompt by prompt; total tokens over total time, and the median ratio."""
    engine = Engine(target, SpeculatorPool(), SchedulerOptions(prefix_cache=False))
    params = SamplingParams(max_tokens=n)
    times: list[tuple[float, float]] = []
    for prompt in tqdm([prompts[0], *prompts], desc=f"concurrency 1, {method}", file=sys.stderr):
        began = time.perf_counter()
        offline = engine.complete(Request(prompt, params, method))
        middle = time.perf_counter()
        _, tokens, _ = asyncio.run(at_concurrency(server, [prompt], 1, n, True, method))
        times.append((middle - began, time.perf_counter() - middle))
        assert tokens == len(offline.token_ids), "HTTP and offline must write the same text"
    times = times[1:]  # the first was the warm-up
    total = n * len(times)
    return {
        "offline_tokens_per_s": total / sum(t for t, _ in times),
        "http_tokens_per_s": total / sum(t for _, t in times),
        "ratio": sum(t for t, _ in times) / sum(t for _, t in times),
        "median_ratio": statistics.median(a / b for a, b in times),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=model_path, default=DEFAULT_MODEL, help="(default: %(default)s)")
    parser.add_argument("--prompts", type=Path, required=True, help="folder with spec_bench, gsm8k and humaneval")
    parser.add_argument("--methods", default="autoregressive,pld,spectra-core", help="for part 1")
    parser.add_argument("--max-tokens", type=int, default=128)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(arguments.model)
    chosen = questions(arguments.prompts, 8)
    turns = [question.turns[0] for kind in chosen.values() for question in kind]
    prompts = [encode_chat(tokenizer, [{"role": "user", "content": turn}])[:512] for turn in turns]
    n = arguments.max_tokens
    with ServerProcess(str(arguments.model), ("--prefix-cache", "false")) as server:
        document = measure(server, arguments.model, prompts, arguments.methods.split(","), n)
    print(as_line(document))


def measure(server: ServerProcess, model: Path, prompts: list[list[int]], methods: list[str], n: int) -> dict[str, Any]:
    """All three parts."""
    target = LocalTarget.load(TargetOptions(str(model)), model)
    document: dict[str, Any] = {"model": model.name, "concurrency_1_streamed": {}}
    for method in methods:
        result = document["concurrency_1_streamed"][method] = one_by_one(server, target, prompts, method, n)
        print(f"concurrency 1, streamed, {method}: {result['http_tokens_per_s']:.0f} tokens/s, "
              f"offline {result['offline_tokens_per_s']:.0f}, ratio {result['ratio']:.3f}", flush=True)  # fmt: skip
    many = prompts * 2
    for stream in (False, True):
        rates = []
        for concurrency in (1, 16):
            before = cpu_seconds(server)
            some = many if concurrency == 16 else prompts[:8]
            rate, tokens, events = asyncio.run(at_concurrency(server, some, concurrency, n, stream, "autoregressive"))
            after = cpu_seconds(server)
            rates.append(rate)
            cpu = {part: (after[part] - before[part]) / events * 1e6 for part in after}
            key = f"autoregressive_{'streamed' if stream else 'whole'}_{concurrency}"
            document[key] = {"tokens_per_s": rate, "tokens": tokens, "events": events, "cpu_us_per_event": cpu}
            costs = ", ".join(f"{part} {us:.0f}" for part, us in cpu.items())
            print(f"{key}: {rate:.0f} tokens/s; CPU us per event: {costs}", flush=True)
        document[f"ratio_16_to_1_{'streamed' if stream else 'whole'}"] = rates[1] / rates[0]
        print(f"  16 against 1: {rates[1] / rates[0]:.2f}x", flush=True)
    return document


if __name__ == "__main__":
    main()
