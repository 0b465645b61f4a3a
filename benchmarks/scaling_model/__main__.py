"""Check the model of docs/scaling.md against the simulator, and print what it predicts for larger clusters.

Two software costs (a hop between stages, a turn of the router) are taken from one stream first; nothing else is fitted.
Five minutes; leave the machine alone meanwhile. --no-check prints the predictions alone, at once. The last line of
stdout is one JSON document.

    python -m benchmarks.scaling_model --plot docs/images/scaling-model.png
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import asdict
from pathlib import Path

from app.reporting.plotting import can_plot
from app.reporting.report import as_line
from benchmarks.scaling_model.check import Checked, calibrate, cases, check
from benchmarks.scaling_model.clusters import break_even, layouts, wires
from benchmarks.scaling_model.plot import draw


def row(one: Checked) -> str:
    """Markdown."""
    return (
        f"| {one.case} | {one.stages} | {one.nodes} | {one.streams} | {one.predicted:.1f} | {one.measured:.1f} | "
        f"{one.ratio:.3f} |"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="each measurement takes at least so long")
    parser.add_argument("--no-check", action="store_true", help="only the tables of what the model says")
    parser.add_argument("--plot", type=Path, help="PNG file")
    arguments = parser.parse_args()
    for table in (layouts(), break_even(), wires()):
        print("\n".join(table) + "\n", flush=True)
    if arguments.no_check:
        return
    overheads = calibrate(arguments.seconds)
    print(f"a hop costs {overheads[0] * 1e6:.0f} us of software, a turn of the router {overheads[1] * 1e6:.0f} us")
    print("| case | stages | nodes | streams | predicted steps/s | measured | ratio |\n|---|---|---|---|---|---|---|")
    found: list[Checked] = []
    for case in cases():
        for one in check(case, overheads, arguments.seconds):
            found.append(one)
            print(row(one), flush=True)
    if arguments.plot and can_plot():
        draw(found, arguments.plot)
    errors = [abs(one.ratio - 1) for one in found]
    document = {
        "hop_s": overheads[0],
        "turn_s": overheads[1],
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "checked": [asdict(one) for one in found],
    }
    print(as_line(document))


if __name__ == "__main__":
    main()
