"""What HTTP costs: a real ``spectra serve`` against the same engine offline, one machine, one run.

1. Concurrency 1, streamed, each method: tokens per second over HTTP against ``spectra generate``'s engine in this
   process, prompt by prompt in turn, same thread count.
2. Autoregressive, not streamed: tokens per second at concurrency 16 against concurrency 1.
3. Streamed at concurrency 16: tokens per second, and CPU seconds per event of ingress, router, proxy and stage.

Leave the machine alone while it runs. Last line: one JSON document.

    python -m benchmarks.http_speed --prompts DIR [--model DIR] [--methods autoregressive,spectra-core]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import torch
from tqdm import tqdm

from app.demo.paths import DEMO_TARGET
from app.inputs.prompts import encode_chat
from app.inputs.tokenizers import load_tokenizer
from app.serving.environment import free_port
from benchmarks.prompt_sets import questions
from engine.loop import Engine, Job
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target.local import LocalTarget
from engine.target.options import TargetOptions
from speculators.pool import SpeculatorPool

PARTS = {"Ingress": "ingress", "Router": "router", "StageActor": "stage", "haproxy": "proxy"}


class Served:
    """A ``spectra serve`` subprocess."""

    def __init__(self, model: Path, flags: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.name = model.name
        command = [sys.executable, "-m", "app.cli", "serve", "--model", str(model), "--port", str(self.port), *flags]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        lines = iter(self._process.stdout.readline, "")
        if not any(line.startswith("Ready") for line in lines):  # Ray may have something to say before
            raise SystemExit("the server did not start")

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far of every part of the server."""
        spent = dict.fromkeys(PARTS.values(), 0.0)
        for process in psutil.process_iter(["name", "cmdline", "cpu_times"]):
            words = " ".join(process.info["cmdline"] or [process.info["name"] or ""])
            for mark, part in PARTS.items():
                is_ours = mark in words and ("ray::" in words or mark == "haproxy") and "ProxyActor" not in words
                if is_ours and process.info["cpu_times"] is not None:
                    spent[part] += process.info["cpu_times"].user + process.info["cpu_times"].system
        return spent

    def stop(self) -> None:
        """As Ctrl-C does."""
        self._process.terminate()
        self._process.wait(60)


async def ask(
    session: aiohttp.ClientSession, served: Served, prompt: Sequence[int], method: str, n: int, stream: bool
) -> tuple[int, int]:
    """One request; returns (tokens, events)."""
    body: dict[str, Any] = {
        "model": served.name,
        "prompt": list(prompt),
        "max_tokens": n,
        "temperature": 0,
        "ignore_eos": True,
        "speculative": {"method": method},
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    async with session.post(f"http://127.0.0.1:{served.port}/v1/completions", json=body) as response:
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
    served: Served, prompts: Sequence[Sequence[int]], concurrency: int, n: int, stream: bool, method: str
) -> tuple[float, int, int]:
    """All prompts, so many at a time: (tokens per second, tokens, events)."""
    waiting = list(prompts)[::-1]
    totals = [0, 0]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def work() -> None:
            while waiting:
                tokens, events = await ask(session, served, waiting.pop(), method, n, stream)
                totals[0] += tokens
                totals[1] += events

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(concurrency)))
        return totals[0] / (time.perf_counter() - began), totals[0], totals[1]


def one_by_one(
    served: Served, target: LocalTarget, prompts: Sequence[list[int]], method: str, n: int
) -> dict[str, float]:
    """Streamed HTTP and offline in turn, prompt by prompt; total tokens over total time, and the median ratio."""
    engine = Engine(target, SpeculatorPool(), SchedulerOptions(prefix_cache=False))
    params = SamplingParams(max_tokens=n)
    times: list[tuple[float, float]] = []
    for prompt in tqdm([prompts[0], *prompts], desc=f"concurrency 1, {method}", file=sys.stderr):
        began = time.perf_counter()
        offline = engine.complete(Job(prompt, params, method))
        middle = time.perf_counter()
        _, tokens, _ = asyncio.run(at_concurrency(served, [prompt], 1, n, True, method))
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
    parser.add_argument("--model", type=Path, default=DEMO_TARGET, help="checkpoint directory (default: demo)")
    parser.add_argument("--prompts", type=Path, required=True, help="folder with spec_bench, gsm8k and humaneval")
    parser.add_argument("--methods", default="autoregressive,pld,spectra-core", help="for part 1")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(arguments.model)
    chosen = questions(arguments.prompts, 8)
    turns = [question.turns[0] for kind in chosen.values() for question in kind]
    prompts = [encode_chat(tokenizer, [{"role": "user", "content": turn}])[:512] for turn in turns]
    n = arguments.max_new_tokens
    served = Served(arguments.model, ("--prefix-cache", "false"))
    try:
        document = measure(served, arguments.model, prompts, arguments.methods.split(","), n)
    finally:
        served.stop()
    print(json.dumps(document))


def measure(served: Served, model: Path, prompts: list[list[int]], methods: list[str], n: int) -> dict[str, Any]:
    """All three parts."""
    target = LocalTarget.load(TargetOptions(str(model)), model)
    document: dict[str, Any] = {"model": model.name, "concurrency_1_streamed": {}}
    for method in methods:
        result = document["concurrency_1_streamed"][method] = one_by_one(served, target, prompts, method, n)
        print(f"concurrency 1, streamed, {method}: {result['http_tokens_per_s']:.0f} tokens/s, "
              f"offline {result['offline_tokens_per_s']:.0f}, ratio {result['ratio']:.3f}", flush=True)  # fmt: skip
    many = prompts * 2
    for stream in (False, True):
        rates = []
        for concurrency in (1, 16):
            before = served.cpu_seconds()
            some = many if concurrency == 16 else prompts[:8]
            rate, tokens, events = asyncio.run(at_concurrency(served, some, concurrency, n, stream, "autoregressive"))
            after = served.cpu_seconds()
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
