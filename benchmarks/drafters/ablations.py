"""What is each part of a parallel drafter's training worth? ParallelSpec's tables in miniature (arXiv 2410.05589).

Every row is a training of the same minutes or steps by ``spectra train``, measured on the same held-out questions: with
masks or without, how many, and settings that the paper leaves open. The run
can be stopped; the same command continues it and keeps finished rows. 15 rows of --minutes each, and the writing of
answers; the last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.reporting.report import bar
from benchmarks.support.reporting import BenchmarkReport, table

COLUMNS = {
    "row": "drafter",
    "drafts": "drafts",
    "forwards": "forwards",
    "greedy": "tau, greedy",
    "sampled": "tau, T",
    "steps": "steps",
}
ON_EAGLE, ON_MEDUSA = "parallelspec-eagle", "parallelspec-medusa"
ROWS: dict[str, Sequence[str]] = {
    "eagle 1": ("--method", "eagle", "--generation", "1"),
    "eagle 3": ("--method", "eagle", "--train-depths", "5"),
    "parallelspec on eagle": ("--method", ON_EAGLE),
    "its masks' state zero": ("--method", ON_EAGLE, "--mask-state", "zero"),
    "its cross-entropy 1": ("--method", ON_EAGLE, "--ce-weight", "1"),
    "its cross-entropy 1, soft": ("--method", ON_EAGLE, "--ce-weight", "1", "--labels", "soft"),
    "its depths .8": ("--method", ON_EAGLE, "--depth-decay", "0.8"),
    "its masks 1": ("--method", ON_EAGLE, "--drafts", "2"),
    "its masks 2": ("--method", ON_EAGLE, "--drafts", "3"),
    "its masks 6": ("--method", ON_EAGLE, "--drafts", "7"),
    "medusa": ("--method", "medusa"),
    "parallelspec on medusa": ("--method", ON_MEDUSA),
    "it on tokens alone": ("--method", ON_MEDUSA, "--no-states"),
    "its labels soft": ("--method", ON_MEDUSA, "--labels", "soft"),
    "its depths alike": ("--method", ON_MEDUSA, "--depth-decay", "1"),
}
MINUTES = 3.0


def main() -> int:
    """Train the rows that are not trained yet; print the table and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="directory of the target")
    parser.add_argument("--prompts", type=Path, nargs="+", required=True, metavar="F.jsonl", help="to train on")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="answers, drafters and the table")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, metavar="M", help=f"of each training (default: {MINUTES:g})")
    budget.add_argument("--steps", type=int, metavar="N", help="of each training, instead")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS), help="some, by name")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    arguments = parser.parse_args()
    if arguments.minutes is None and arguments.steps is None:
        arguments.minutes = MINUTES
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
    document = {"target": arguments.target, **budget_of(arguments), "rows": rows}
    return BenchmarkReport(document, found, failed=False).publish(arguments.out)


def trained(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the document of a row; train it unless that was done before."""
    out = arguments.out / name.replace(" ", "-").replace(",", "")
    known = out / "training.json"
    if known.exists():
        document: dict[str, Any] = json.loads(known.read_text())
        if document["training"]["budget"] == budget_of(arguments):
            return document
    command = [sys.executable, "-m", "app.cli", "train", "--target", arguments.target, "--out", out, *ROWS[name]]
    [(kind, amount)] = ((kind, amount) for kind, amount in budget_of(arguments).items() if amount is not None)
    command += [f"--{kind}", amount, "--seed", arguments.seed, *answers_for(arguments)]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    return dict(json.loads(known.read_text()))


def budget_of(arguments: argparse.Namespace) -> dict[str, float | None]:
    """Return the budget of every training, in one of two units."""
    return {"minutes": arguments.minutes, "steps": arguments.steps}


def answers_for(arguments: argparse.Namespace) -> list[object]:
    """Return the flags of the answers to train on; the first row writes them."""
    answers = arguments.out / "answers" / "work" / "answers.jsonl"
    if not (arguments.out / "answers" / "training.json").exists():
        out = ("--target", arguments.target, "--out", arguments.out / "answers", "--seed", arguments.seed)
        command = [sys.executable, "-m", "app.cli", "train", "--method", "medusa", *out, "--steps", 1]
        command += ["--prompts", *arguments.prompts]
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    return ["--answers", answers]


def row(name: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a row; a forward drafts one token, or all."""
    held_out = document["held_out"]
    depths = len(held_out["sampled"]["by_depth"])
    return {
        "row": name,
        "drafts": depths,
        "forwards": depths if document["method"] == "eagle" else 1,
        "greedy": held_out["greedy"]["tau"],
        "sampled": held_out["sampled"]["tau"],
        "steps": document["training"]["steps"],
    }


if __name__ == "__main__":
    sys.exit(main())
