"""How many tokens a forward pass does each drafter give, after equal training? ParallelSpec's tables in miniature
(arXiv 2410.05589): methods, numbers of masks, and settings that the paper leaves open.

Every row is a training by ``spectra train`` on the same texts, measured on the same held-out questions. Flags after --
are those of ``spectra train`` for all rows; texts, states and drafters are in --out. Steps of equal batches read equal
tokens; 400 steps take 5 to 20 minutes a row with the default model. The run can be stopped; the same command continues
it and keeps finished rows. The last line of stdout is one JSON document.

    python -m benchmarks.drafters.ablations --target DIR --out OUT --steps 5000 -- --own-questions 1000
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.reporting.report import bar
from benchmarks.support.reporting import BenchmarkReport, table

COLUMNS = {
    "row": "drafter",
    "weights": "weights",
    "forwards": "forwards",
    "greedy": "tau, greedy",
    "sampled": "tau, T",
    "depths": "accepted by depth, T",
    "tokens": "tokens read",
    "minutes": "minutes",
}
ON_EAGLE, ON_MEDUSA = "parallelspec-eagle", "parallelspec-medusa"
ROWS: dict[str, Sequence[str]] = {
    "eagle 1": ("--method", "eagle", "--generation", "1"),
    "eagle 3": ("--method", "eagle"),
    "parallelspec on eagle": ("--method", ON_EAGLE),
    "its masks' state zero": ("--method", ON_EAGLE, "--mask-state", "zero"),
    "its cross-entropy 1": ("--method", ON_EAGLE, "--ce-weight", "1"),
    "its cross-entropy 1, soft": ("--method", ON_EAGLE, "--ce-weight", "1", "--labels", "soft"),
    "its depths .8": ("--method", ON_EAGLE, "--depth-decay", "0.8"),
    **{f"its masks {n}": ("--method", ON_EAGLE, "--drafts", str(n + 1)) for n in (1, 2, 3, 6)},
    "medusa": ("--method", "medusa"),
    "parallelspec on medusa": ("--method", ON_MEDUSA),
    "it without states": ("--method", ON_MEDUSA, "--no-states"),
    "its labels soft": ("--method", ON_MEDUSA, "--labels", "soft"),
    "its depths of weight 1": ("--method", ON_MEDUSA, "--depth-decay", "1"),
}


def main() -> int:
    """Train the rows that are not trained yet; print the table and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="directory of the target, or demo")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="texts, drafters and the table")
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float, metavar="M", help="of each training")
    budget.add_argument("--steps", type=int, metavar="N", help="of each training")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS), help="some, by name")
    parser.add_argument("flags", nargs="*", metavar="FLAG", help="after --: flags of spectra train")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.rows if name not in ROWS]
    if unknown:
        parser.error(f"--rows has {unknown[0]!r}; rows are {', '.join(ROWS)}")
    rows = []
    with bar("rows", len(arguments.rows), "row") as shown:
        for name in arguments.rows:
            rows.append(row(name, trained(name, arguments)))
            shown.update()
    found = table(COLUMNS, rows)
    print(found)
    document = {"target": arguments.target, **budget_of(arguments), "flags": arguments.flags, "rows": rows}
    return BenchmarkReport(document, found, failed=False).publish(arguments.out)


def trained(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the document of a row; train it unless that was done before."""
    out = arguments.out / name.replace(" ", "-").replace(",", "")
    known = out / "training.json"
    command = [sys.executable, "-m", "app.cli", "train", "--target", arguments.target, "--out", out, *ROWS[name]]
    [(kind, amount)] = ((kind, amount) for kind, amount in budget_of(arguments).items() if amount is not None)
    command += [f"--{kind}", amount, "--work", arguments.out / "work", *arguments.flags]
    command = list(map(str, command))
    if known.exists():
        document: dict[str, Any] = json.loads(known.read_text())
        if document["command"] == shlex.join(["spectra", *command[3:]]):
            return document
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return dict(json.loads(known.read_text()))


def budget_of(arguments: argparse.Namespace) -> dict[str, float | None]:
    """Return the budget of every training, in one of two units."""
    return {"minutes": arguments.minutes, "steps": arguments.steps}


def row(name: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a row; a forward drafts one token, or all."""
    held_out, training = document["held_out"], document["training"]
    depths = held_out["sampled"]["by_depth"]
    return {
        "row": name,
        "weights": f"{document['weights'] / 1e6:.2f} M",
        "forwards": len(depths) if document["method"] == "eagle" else 1,
        "greedy": held_out["greedy"]["tau"],
        "sampled": held_out["sampled"]["tau"],
        "depths": " ".join(f"{share:.2f}" for share in depths),
        "tokens": training["tokens"],
        "minutes": f"{training['seconds'] / 60:.1f}",
    }


if __name__ == "__main__":
    sys.exit(main())
