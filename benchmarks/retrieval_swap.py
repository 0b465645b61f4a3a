"""What a swap of snapshots costs those who draft meanwhile; prints one JSON line.

A loop like the router's: it waits for a step of the target, then drafts for every live request. Measured is how late
the loop wakes up plus how long drafting takes, step by step, in windows of time in which the reader of its process
takes over another snapshot, and in as many between them in which it does not, so that whatever else the machine does
hits both alike. The service itself is another process and no part of this.

    python -m benchmarks.retrieval_swap --tokens 10000000 --folder /tmp/swap
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from engine.sampling.params import SamplingParams
from retrieval_store.service.manifest_feed import Answer, Known, Offer, Part, Status
from retrieval_store.service.reader import Reader
from retrieval_store.snapshots.snapshot import Description, read_manifest
from retrieval_store.snapshots.snapshot_writer import write_snapshot
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions

SHARED = "default"
VOCABULARY = 32_000
TEXT = 500  # tokens of a text


@dataclass
class Switch:
    """A service that offers one of several snapshots."""

    parts: Sequence[Part]
    at: int = 0
    asked: list[float] = field(default_factory=list)

    def changes(self, known: Known, timeout: float) -> Answer:
        """What is chosen, if the reader has another one."""
        part = self.parts[self.at]
        deadline = time.monotonic() + timeout
        while known[SHARED][0] == part.version and time.monotonic() < deadline:
            time.sleep(0.01)
            part = self.parts[self.at]
        offers = {} if known[SHARED][0] == part.version else {SHARED: Offer(part)}
        return Answer(offers, Status())

    def read(self, namespace: str, version: str, file: str, offset: int) -> bytes:
        """Never asked: the files are on this node."""
        raise NotImplementedError

    def learn(self, namespace: str, texts: Sequence[Sequence[int]]) -> int:
        """Nothing learns."""
        return len(texts)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_000_000, help="of each of the two snapshots")
    parser.add_argument("--folder", type=Path, required=True, help="where they are kept between runs")
    parser.add_argument("--requests", type=int, default=8, help="live requests")
    parser.add_argument("--step", type=float, default=0.005, help="seconds a step of the target takes")
    parser.add_argument("--windows", type=int, default=40, help="with a swap, and as many without")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each")
    parser.add_argument("--method", default="spectra-retrieval")
    arguments = parser.parse_args()
    switch = Switch([_part(arguments.folder, arguments.tokens, seed) for seed in (1, 2)])
    reader = Reader(switch, SHARED)
    reader.start()
    while not reader.of(""):
        time.sleep(0.01)
    print(json.dumps(asyncio.run(_measure(arguments, switch, reader))))
    reader.stop()


async def _measure(arguments: argparse.Namespace, switch: Switch, reader: Reader) -> dict[str, object]:
    pool = SpeculatorPool(SpeculatorOptions(retrieval=lambda: reader))
    chance = np.random.default_rng(3)
    for number in range(arguments.requests):
        pool.begin(number, _zipf(chance, 200).tolist(), SamplingParams(max_tokens=10**6), arguments.method, VOCABULARY)
    gc.collect()
    gc.freeze()  # as the router does
    budgets = dict.fromkeys(range(arguments.requests), 64)
    await _steps(pool, budgets, arguments.step, 2.0)
    windows: tuple[list[list[float]], list[list[float]]] = ([], [])
    before = reader.n_swaps
    for _ in range(arguments.windows):
        windows[0].append(await _steps(pool, budgets, arguments.step, arguments.seconds))
        switch.at = 1 - switch.at
        windows[1].append(await _steps(pool, budgets, arguments.step, arguments.seconds))
    return {
        "tokens": arguments.tokens,
        "snapshot_mib": round(sum(f.stat().st_size for f in Path(switch.parts[0].folder).iterdir()) / 2**20),
        "step_ms": arguments.step * 1e3,
        "requests": arguments.requests,
        "swaps": reader.n_swaps - before,
        "without_ms": _figures(windows[0]),
        "swapping_ms": _figures(windows[1]),
    }


async def _steps(pool: SpeculatorPool, budgets: dict[int, int], step: float, seconds: float) -> list[float]:
    """Seconds beyond the target's, step by step."""
    took = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        await asyncio.sleep(step)
        pool.advance([], budgets)
        took.append(time.perf_counter() - began - step)
    return took


def _figures(windows: list[list[float]]) -> dict[str, float]:
    """Over all steps, and over the longest step of each window."""
    steps = np.concatenate(windows) * 1e3
    longest = np.array([max(window) for window in windows]) * 1e3
    return {
        "median": round(float(np.median(steps)), 2),
        "p99": round(float(np.percentile(steps, 99)), 2),
        "longest_of_window_median": round(float(np.median(longest)), 2),
        "longest_of_window_p90": round(float(np.percentile(longest, 90)), 2),
        "longest": round(float(longest.max()), 2),
    }


def _part(folder: Path, tokens: int, seed: int) -> Part:
    """A snapshot of random text with a vocabulary as uneven as language's; made once."""
    place = folder / f"{tokens}-{seed}"
    if not place.exists():
        chance = np.random.default_rng(seed)
        texts = (_zipf(chance, TEXT) for _ in range(tokens // TEXT))
        write_snapshot(texts, place, Description(tokenizer_hash="", vocab_size=VOCABULARY))
    version = read_manifest(place).version
    named = folder / version
    if not named.exists():
        named.symlink_to(place.resolve())
    return Part(version, str(named), tokens)


def _zipf(chance: np.random.Generator, n: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.minimum(chance.zipf(1.2, n), VOCABULARY - 1).astype(np.int32)


if __name__ == "__main__":
    main()
