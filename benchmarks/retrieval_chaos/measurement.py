"""Runs the load and the steps side by side, and keeps what was seen; not what follows from it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from tqdm import tqdm

from benchmarks.retrieval_chaos.answers import Answer
from benchmarks.retrieval_chaos.clients import TENANT, Load
from benchmarks.retrieval_chaos.driver import Driver
from benchmarks.retrieval_chaos.phases import Phase, figures
from benchmarks.retrieval_chaos.steps import Step
from benchmarks.server_process import ServerProcess


@dataclass
class Result:
    """Everything that was seen."""

    phases: list[Phase]
    answers: list[Answer]
    beats: list[tuple[float, float]]
    reference: list[str]
    learnt: dict[str, float]


async def measure(
    settings: argparse.Namespace, server: ServerProcess, steps: Sequence[Step], prompts: Sequence[str], worker: Any
) -> Result:
    """Run the load and the steps side by side."""
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        load, driver = Load(server, session, prompts, settings.max_new_tokens), Driver(server, session, worker)
        reference = await load.reference(settings.concurrency)
        names = [TENANT, *[""] * (settings.concurrency - 1)]
        running = [asyncio.create_task(load.client(name)) for name in names]
        timer = asyncio.create_task(load.beat())
        await asyncio.sleep(settings.warm_up)
        phases = []
        bar = tqdm([(n, step) for n in range(settings.rounds) for step in steps], file=sys.stderr, unit="phase")
        for number, step in bar:
            bar.set_postfix_str(step.name)
            phases.append(await driver.go(step, number + 1, settings.seconds))
        load.stop()
        await asyncio.gather(timer, *running)
        learnt = {name: value for name, value in (await figures(session, server)).items() if ":live_" in name}
        return Result(phases, load.answers, load.beats, reference, learnt)
