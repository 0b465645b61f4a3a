"""Is `auto` ever slower than a server that is allowed `autoregressive` only, and how far from the best fixed method?

A cell is a machine, a kind of prompt, a temperature and a number of streams. In a cell `auto`, no speculation and fixed
methods write the same texts in alternation; every text is compared. So many streams decode at all times: a stream whose
text is complete submits the next prompt at once. The figure is the time from a text's submission to its last token.
Ratios are of sums over paired runs, with 95 % bootstrap intervals over turns and texts; the best fixed method is chosen
on one half of the turns and compared on the other. Turns are added until an interval is within 1 % (CPU: 3 %), or well
above its bar.

    cpu                   the model on this CPU, one thread, at 1, 4 and 16 streams
    8b-h200, 70b-h100x4   in virtual time, at 16, 64 and 256 streams: the model writes the texts once, and a replay
                          answers with them; a step takes what engine.simulated.profile says, and the host its processor
                          time here, with caches emptied before every answer

The last line of stdout is one JSON document. Exit status 1: a text differs, the whole interval of a cell lies below
0.98 of no speculation, or that of a category (machine, prompts, temperature) below 0.97 of the best fixed method. A
full run takes 90 minutes. --out keeps texts and records, and the same command continues there.

    python -m benchmarks.never_slower --prompts DIR --half 1 --out OUT
    python -m benchmarks.never_slower --prompts DIR --only cpu --cold --concurrency 1 4
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import torch

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from app.reporting.record_file import RecordFile
from app.reporting.report import bar
from benchmarks.never_slower.cells import AUTO, CPU, KINDS, NONE, Cell, CellTurn, grid, prompts_of, turns_of
from benchmarks.never_slower.machines import MACHINES
from benchmarks.never_slower.report import report
from benchmarks.never_slower.stand import MethodComparison, StandOptions
from benchmarks.never_slower.summary import Summary, hopeful
from engine.errors import ConfigError
from engine.model.identity import model_hash

MIXED = "suffix+token-recycling"
FIXED = ("pld", "suffix", f"{MIXED}@8", f"{MIXED}@16", "spectra-core")
SIMULATED_SHARE = 0.6  # of the minutes, after which cells of the CPU come first


def parsed(given: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=model_path, default=DEFAULT_MODEL, help="(default: %(default)s)")
    add("--prompts", type=Path, required=True, help="folder with the files of the kinds, such as spec_bench.jsonl")
    add("--half", type=int, choices=(0, 1), help="of each kind of prompt (default: both)")
    add("--only", nargs="+", choices=(CPU, *MACHINES), default=[CPU, *MACHINES], help="machines (default: all)")
    add("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of prompts (default: all)")
    add("--temperatures", nargs="+", type=float, default=(0.0, 0.8, 1.0), help="(default: 0 0.8 1)")
    add("--concurrency", nargs="+", type=int, help="streams (default: 1 4 16 on the CPU, 16 64 256 simulated)")
    add("--fixed", nargs="*", help=f"METHOD or METHOD@NODES (default: {' '.join(FIXED)})")
    add("--tokens", type=int, help="of a text, at most (default: 96 on the CPU, 256 simulated)")
    add("--texts", type=int, default=48, help="different ones of a kind and temperature, at most (default: 48)")
    add("--minutes", type=float, default=90.0, help="no turn begins after so many (default: 90)")
    add("--cold", action="store_true", help="speculators forget everything before every turn")
    add("--out", type=Path, help="folder for texts, records, table and picture; a run continues from its records")
    return parser.parse_args(given)


def cells_of(arguments: argparse.Namespace) -> list[Cell]:
    return grid(arguments.only, arguments.kinds, arguments.temperatures, arguments.concurrency)


def methods_of(cell: Cell, records: Sequence[CellTurn], fixed: Sequence[str]) -> list[str]:
    """Return the methods of a cell's next turn; none: its intervals are narrow enough."""
    turns = turns_of(cell, records)
    if turns:
        return [] if len(turns) > 1 and Summary.of(cell, turns).is_sure else [AUTO, NONE, *hopeful(turns)]
    # A method that was hopeless with fewer streams is more so with many: nodes only become more expensive.
    smaller = {turn.cell for turn in records if turn.cell[:3] == cell[:3] and turn.cell.streams < cell.streams}
    known = turns_of(max(smaller, key=lambda other: other.streams), records) if smaller else []
    return [AUTO, NONE, *(hopeful(known) if known and cell.machine != CPU else fixed)]


def next_turn(
    cells: Sequence[Cell], records: Sequence[CellTurn], fixed: Mapping[str, Sequence[str]], spent: float
) -> tuple[Cell, list[str]] | None:
    """Return the cell of the next turn and its methods, or None if every interval is narrow enough.

    Simulated cells come first, and fewest turns first; the CPU's come first once a share ``spent`` of the time is over.
    """

    def order(cell: Cell) -> tuple[bool, int, int]:
        return (cell.machine == CPU) != (spent > SIMULATED_SHARE), len(turns_of(cell, records)), cell.streams

    for cell in sorted(cells, key=order):
        n_turns = len(turns_of(cell, records))
        if n_turns < cell.most_turns and (methods := methods_of(cell, records, fixed[cell.machine])):
            return cell, methods
    return None


def run(arguments: argparse.Namespace, file: RecordFile[CellTurn], fixed: Mapping[str, Sequence[str]]) -> None:
    """Run turns until every interval is narrow enough, or the time is over."""
    began, cells = time.monotonic(), cells_of(arguments)
    stand: MethodComparison | None = None
    with bar(None, sum(cell.most_turns for cell in cells), "turn") as shown:
        while (spent := (time.monotonic() - began) / 60) < arguments.minutes:
            if (turn := next_turn(cells, file.records, fixed, spent / arguments.minutes)) is None:
                return
            if stand is None:
                stand = stand_of(arguments, fixed)
                stand.record(cells)
                stand.warm_up(cells)
            cell, methods = turn
            shown.set_description(cell.label)
            file.append(stand.turn(cell, len(turns_of(cell, file.records)), methods))
            shown.update()


def stand_of(arguments: argparse.Namespace, fixed: Mapping[str, Sequence[str]]) -> MethodComparison:
    """Return what runs the turns."""
    options = StandOptions(
        model=arguments.model,
        fixed=fixed,
        tokens={name: arguments.tokens or (96 if name == CPU else 256) for name in (CPU, *MACHINES)},
        n_texts=arguments.texts,
        archive=None if arguments.out is None else arguments.out / "texts",
        is_cold=arguments.cold,
    )
    prompts = prompts_of(arguments.kinds, arguments.prompts, arguments.model, arguments.texts, arguments.half)
    return MethodComparison(options, prompts)


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print."""
    arguments = parsed(given)
    torch.set_num_threads(1)
    fixed = MappingProxyType(
        {name: FIXED if arguments.fixed is None else tuple(arguments.fixed) for name in (CPU, *MACHINES)}
    )
    settings: dict[str, Any] = {
        "model": f"{arguments.model.name} {model_hash(arguments.model)[:12]}",
        "prompts": str(arguments.prompts),
        **{name: getattr(arguments, name) for name in ("half", "fixed", "tokens", "texts", "cold")},
    }
    with TemporaryDirectory() as temporary:
        path = (arguments.out or Path(temporary)) / "records.jsonl"
        try:
            with RecordFile(path, CellTurn, settings, "give another --out") as file:
                run(arguments, file, fixed)
        except ConfigError as error:
            raise SystemExit(f"never_slower: {error}") from error
        except KeyboardInterrupt:
            print("stopped; these are the turns that were done", file=sys.stderr)
    done = {cell: turns_of(cell, file.records) for cell in cells_of(arguments)}
    found = report([Summary.of(cell, turns) for cell, turns in done.items() if turns], settings)
    print(found.tables, flush=True)
    return found.publish(arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
