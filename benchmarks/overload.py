"""What happens at several times the capacity: who is refused, how long the others wait, and whether anything is lost.

A simulated target (sleeping stages) behind the real server: real HTTP, router, scheduler, channels. First a closed loop
with as many clients as sequences finds the capacity (requests per second); then open loops with Poisson arrivals at
--factors times that rate. Per factor: admitted and refused (429) requests, the Retry-After they were told, TTFT of the
admitted (p50, p99, from the intended arrival), goodput, failures. A text must be the same whenever it is written.

    python -m benchmarks.overload --seconds 30

The last line is one JSON document; exit status 1: an admitted request failed, a text differed, TTFT p99 of the admitted
was above 1.5 times --max-wait, or at a factor above 1.5 nobody was refused or a refusal had no Retry-After.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from app.demo.paths import DEMO
from app.load.failures import TOO_MANY
from benchmarks.load_runs import load
from benchmarks.server_process import ServerProcess

SLACK = 1.5  # expected waits are expectations
HEAD = ("x capacity", "sent/s", "admitted", "refused (429)", "Retry-After s p50/max", "TTFT s p50/p99", "output tok/s")


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overload", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulate", default="flat10", help="profile of the stages (default: flat10)")
    parser.add_argument("--stages", type=int, default=4, help="(default: 4)")
    parser.add_argument("--sequences", type=int, default=32, help="decoded side by side (default: 32)")
    parser.add_argument(
        "--max-wait", type=float, default=4.0, help="seconds a newcomer may expect to wait (default: 4)"
    )
    parser.add_argument("--max-tokens", type=int, default=50, help="of an answer (default: 50)")
    parser.add_argument("--method", default="autoregressive", help="(default: autoregressive)")
    parser.add_argument("--seconds", type=float, default=30.0, help="per factor (default: 30)")
    parser.add_argument("--factors", default="0.8,1.5,4", help="times the capacity (default: 0.8,1.5,4)")
    return parser.parse_args()


def server_of(settings: argparse.Namespace, folder: Path) -> ServerProcess:
    """Not started yet."""
    flags = ["--simulate", settings.simulate, "--stages", settings.stages, "--max-sequences", settings.sequences]
    flags += ["--max-wait", settings.max_wait, "--method", settings.method, "--max-waiting", 100_000]
    return ServerProcess(DEMO, list(map(str, flags)), folder / "server.log")


def row_of(factor: float, rate: float, found: dict[str, Any]) -> dict[str, Any]:
    """A factor's figures."""
    refused = found["errors"].get(TOO_MANY, 0)
    told, ttft = found["retry_after"] or {}, found["ttft"] or {}
    return {
        "factor": factor,
        "rate": round(rate, 2),
        "admitted": found["ok"],
        "refused": refused,
        "retry_after_p50": told.get("p50"),
        "retry_after_max": told.get("max"),
        "retry_after_told": told.get("n", 0),
        "ttft_p50": ttft.get("p50"),
        "ttft_p99": ttft.get("p99"),
        "output_tokens_per_s": found["output_tokens_per_s"],
        "failed_otherwise": found["failed"] - refused,
        "errors": found["errors"],
        "differing": found["identity"]["differing"][:3],
    }


def line_of(row: dict[str, Any]) -> str:
    """Markdown."""
    cells = [row["factor"], row["rate"], row["admitted"], row["refused"]]
    cells += [
        f"{_s(row['retry_after_p50'])} / {_s(row['retry_after_max'])}",
        f"{_s(row['ttft_p50'])} / {_s(row['ttft_p99'])}",
    ]
    return "| " + " | ".join(map(str, [*cells, _s(row["output_tokens_per_s"])])) + " |"


def _s(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def wrong_with(row: dict[str, Any], longest_wait: float) -> list[str]:
    """Everything that must not be; ``longest_wait`` bounds TTFT p99 of the admitted, in seconds."""
    name, wrong = f"at {row['factor']} x capacity", []
    if row["failed_otherwise"]:
        wrong.append(f"{name}: {row['failed_otherwise']} requests failed: {row['errors']}")
    if row["differing"]:
        wrong.append(f"{name}: texts differ: {row['differing']}")
    if row["factor"] > 1.5 and not row["refused"]:
        wrong.append(f"{name}: nobody was refused")
    if (row["ttft_p99"] or 0.0) > longest_wait:
        wrong.append(f"{name}: TTFT p99 is {row['ttft_p99']:.1f} s, more than {longest_wait:.1f}")
    if row["retry_after_told"] < row["refused"]:
        wrong.append(f"{name}: {row['refused'] - row['retry_after_told']} refusals without Retry-After")
    return wrong


def measure(settings: argparse.Namespace, url: str) -> dict[str, Any]:
    """Capacity, then each factor."""
    common = ("--max-tokens", settings.max_tokens, "--temperature", 0.8, "--repeat-check", 64, "--ignore-eos")
    closed = load(url, "--concurrency", settings.sequences, "--duration", settings.seconds, "--warmup", 8, *common)
    capacity = closed["requests_per_s"]
    print(f"capacity: {capacity:.2f} requests/s, {closed['output_tokens_per_s']:.0f} tokens/s\n")
    print("| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|", flush=True)
    rows = []
    for factor in map(float, settings.factors.split(",")):
        rate = factor * capacity
        found = load(url, "--rate", round(rate, 3), "--arrivals", "poisson", "--duration", settings.seconds, *common)
        rows.append(row_of(factor, rate, found))
        print(line_of(rows[-1]), flush=True)
    wrong = [what for row in rows for what in wrong_with(row, SLACK * settings.max_wait)]
    return {"capacity_requests_per_s": capacity, "rows": rows, "wrong": wrong}


def main() -> int:
    """Measure and print."""
    settings = parsed()
    with tempfile.TemporaryDirectory(prefix="spectra-overload-") as folder:
        server = server_of(settings, Path(folder))
        try:
            server.start()
            document = measure(settings, server.url)
        finally:
            server.stop()
    print(json.dumps(document))
    return int(bool(document["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
