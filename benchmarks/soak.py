"""Does anything grow? A real server under mixed load for half an hour, its memory and its KV cache watched.

Starts ``spectra serve`` with a pipeline, and ``spectra load`` (closed loop, prompts of changing lengths, sampled, with
the server's method) beside it. Every few seconds it writes down resident memory of every part and what /health says.
At the end, per part: memory after the first third and at the end, and the slope of a line through the last two
thirds. A part that has grown by more than --limit MiB per hour in the last two thirds fails the run, as do blocks or
sessions that are left when the load has gone, and answers to one seed that differ.

    python -m benchmarks.soak --minutes 30 --out soak

The last line is one JSON document; exit status 1: something grew, was left, failed or differed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from app.demo.paths import DEMO
from benchmarks.chaos.watch import Look, Watch, ask_health
from benchmarks.load_runs import document_of, load_command
from benchmarks.server_process import ServerProcess

LOOK_S = 5.0


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEMO, help="checkpoint directory (default: demo)")
    parser.add_argument("--minutes", type=float, default=30.0, help="of load (default: 30)")
    parser.add_argument("--concurrency", type=int, default=8, help="clients (default: 8)")
    parser.add_argument("--max-tokens", type=int, default=200, help="of an answer (default: 200)")
    parser.add_argument("--prompts", type=Path, help="JSON lines for spectra load (default: its built-in ones)")
    parser.add_argument("--flags", default="--stages 2 --speculator-actors 1", help="flags of spectra serve")
    parser.add_argument("--limit", type=float, default=60.0, help="MiB per hour a part may grow (default: 60)")
    parser.add_argument("--out", type=Path, help="folder for memory.png, table.md and result.json")
    return parser.parse_args()


async def soak(
    settings: argparse.Namespace, server: ServerProcess
) -> tuple[list[Look], dict[str, Any], dict[str, Any]]:
    """(looks, what the load says, health at the end)."""
    flags: list[str | int | float] = ["--concurrency", settings.concurrency, "--duration", settings.minutes * 60]
    flags += ["--max-tokens", settings.max_tokens, "--temperature", 0.8, "--repeat-check", 512]
    if settings.prompts is not None:
        flags += ["--prompts", settings.prompts]
    command = load_command(server.url, flags)
    load = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    watch = Watch(server.url, server.pid, LOOK_S, with_memory=True)
    async with watch:
        output, _ = await load.communicate()
    import aiohttp

    await asyncio.sleep(2.0)
    async with aiohttp.ClientSession() as session:
        return watch.looks, document_of(output.decode(), command), await ask_health(session, server.url)


def growth(looks: Sequence[Look]) -> dict[str, dict[str, float]]:
    """Part -> MiB after a third and at the end, and MiB per hour over the last two thirds."""
    kept = looks[len(looks) // 3 :]
    hours = np.array([look.at - kept[0].at for look in kept]) / 3600
    found = {}
    for part in kept[-1].memory:
        values = np.array([look.memory.get(part, 0.0) for look in kept])
        slope = float(np.polyfit(hours, values, 1)[0]) if len(kept) > 2 else 0.0
        found[part] = {
            "after_a_third": round(float(values[: max(1, len(values) // 20)].mean()), 1),
            "at_the_end": round(float(values[-max(1, len(values) // 20) :].mean()), 1),
            "mib_per_hour": round(slope, 1),
        }
    return found


def kv_use(looks: Sequence[Look]) -> list[float]:
    """Share of KV blocks in use at every look that was answered."""
    told = [look.health for look in looks if look.health.get("blocks")]
    return [1 - health["free_blocks"] / health["blocks"] for health in told]


def table(grown: dict[str, dict[str, float]]) -> str:
    """Markdown."""
    lines = ["| part | MiB after a third | MiB at the end | MiB per hour |", "|---|---|---|---|"]
    lines += [
        f"| {part} | {row['after_a_third']} | {row['at_the_end']} | {row['mib_per_hour']} |"
        for part, row in sorted(grown.items())
    ]
    return "\n".join(lines) + "\n"


def plot(looks: Sequence[Look], path: Path) -> None:
    """Memory by part above, KV use below."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, figsize=(11, 7), sharex=True, layout="constrained", height_ratios=(2, 1))
    minutes = [(look.at - looks[0].at) / 60 for look in looks]
    for part in sorted(looks[-1].memory):
        above.plot(minutes, [look.memory.get(part, 0.0) for look in looks], label=part)
    above.set(ylabel="MiB resident")
    above.set_ylim(bottom=0)
    above.legend()
    used = [(m, look.health) for m, look in zip(minutes, looks, strict=True) if look.health.get("blocks")]
    below.plot([m for m, _ in used], [100 * (1 - h["free_blocks"] / h["blocks"]) for _, h in used], linewidth=0.8)
    below.set(xlabel="minutes", ylabel="% of KV blocks in use")
    figure.savefig(path, dpi=110)


def wrong_with(
    settings: argparse.Namespace, grown: dict[str, dict[str, float]], load: dict[str, Any], after: dict[str, Any]
) -> list[str]:
    """Everything that must not be."""
    wrong = [
        f"{part} grows by {row['mib_per_hour']} MiB per hour"
        for part, row in grown.items()
        if row["mib_per_hour"] > settings.limit
    ]
    if after.get("free_blocks") != after.get("blocks") or after.get("sessions") != 0:
        wrong.append(f"left over: {after}")
    if load["failed"]:
        wrong.append(f"{load['failed']} requests failed: {load['errors']}")
    if load["identity"]["differing"]:
        wrong.append(f"texts of one seed differ: {load['identity']['differing'][:3]}")
    return wrong


def main() -> int:
    """Measure and print."""
    settings = parsed()
    with tempfile.TemporaryDirectory(prefix="spectra-soak-") as folder:
        server = ServerProcess(settings.model, settings.flags.split(), Path(folder) / "server.log")
        try:
            server.start()
            for _ in tqdm(range(1), desc=f"{settings.minutes:g} minutes until {_clock(settings.minutes)}"):
                looks, load, after = asyncio.run(soak(settings, server))
        finally:
            server.stop()
    grown, used = growth(looks), kv_use(looks)
    wrong = wrong_with(settings, grown, load, after)
    shown = table(grown)
    print(shown)
    document = {"minutes": settings.minutes, "memory": grown, "kv_use_max": round(max(used, default=0.0), 3)}
    document |= {"kv_use_at_the_end": used[-1] if used else None, "load": load, "wrong": wrong}
    if settings.out is not None:
        settings.out.mkdir(parents=True, exist_ok=True)
        (settings.out / "table.md").write_text(shown)
        (settings.out / "result.json").write_text(json.dumps(document, indent=2) + "\n")
        plot(looks, settings.out / "memory.png")
    print(json.dumps(document))
    return int(bool(wrong))


def _clock(minutes: float) -> str:
    return time.strftime("%H:%M", time.localtime(time.time() + 60 * minutes))


if __name__ == "__main__":
    sys.exit(main())
