"""How much sooner is a text complete with speculation, on this CPU with one thread?

Every method writes the same texts as `autoregressive`, in one process and with the same weights. Methods alternate
after every step, so that whatever the machine does, it does to all. METHOD@NODES drafts at most so many nodes a step.
Speculators know only the texts that they are writing. Seconds are processor time of this process, from the submission
of a prompt to the end of its text. A ratio above 1 is faster; its 95 % interval is a bootstrap over turns and prompts.
Choose settings on `--half 0` of the prompts, and report those of `--half 1`.

The last line of stdout is one JSON document. Exit status 1: a text differs. Each prompt takes about half a minute for
every combination of batch size and temperature.

    python -m benchmarks.never_slower.speedup --prompts DIR --half 1 --per-kind 12
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from app.inputs.prompts import BUILTIN, Question, encode_chat
from app.inputs.tokenizers import load_tokenizer
from app.reporting.progress import bar
from app.reporting.tables import markdown
from benchmarks.never_slower.cells import CPU, NONE, Cell, CellRecord
from benchmarks.never_slower.record_file import Turn
from benchmarks.never_slower.stand import MethodComparison
from benchmarks.never_slower.statistics import Comparison, Interval, compare
from benchmarks.never_slower.summary import shown
from benchmarks.support.prompt_sets import halved, questions
from benchmarks.support.reporting import BenchmarkReport

METHODS = ("auto@64", "suffix+token-recycling@8", "suffix+token-recycling@64", "pld@8")
HEAD = ("method", "batch", "T", "over autoregressive (95 %)", "by kind", "tokens/s", "tokens per forward", "identical")


def parsed(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default=DEFAULT_MODEL, help="(default: %(default)s)")
    add("--prompts", type=Path, help="folder with spec_bench, gsm8k and humaneval (default: packaged prompts)")
    add("--half", type=int, choices=(0, 1), help="of each kind of prompt (default: both)")
    add("--per-kind", type=int, default=12, help="prompts of each kind, at most (default: 12)")
    add("--tokens", type=int, default=96, help="of a text, at most (default: 96)")
    add("--methods", nargs="+", default=METHODS, help=f"(default: {' '.join(METHODS)})")
    add("--batch-sizes", type=int, nargs="+", default=(1, 4), help="texts that are written together (default: 1 4)")
    add("--temperatures", type=float, nargs="+", default=(0.0, 0.8), help="(default: 0 0.8)")
    return parser.parse_args(given)


def prompts_of(arguments: argparse.Namespace) -> dict[str, list[list[int]]]:
    """Kind -> prompts as token ids in the model's chat template."""
    if arguments.prompts is None:
        chosen = halved(BUILTIN, arguments.half)[: arguments.per_kind]
        asked = {"packaged": [Question([text]) for text in chosen]}
    else:
        asked = questions(arguments.prompts, arguments.per_kind, half=arguments.half)
    tokenizer = load_tokenizer(model_path(arguments.model))
    return {
        kind: [encode_chat(tokenizer, [{"role": "user", "content": one.text}]) for one in some]
        for kind, some in asked.items()
    }


def measure(arguments: argparse.Namespace, prompts: Mapping[str, Sequence[list[int]]]) -> dict[Cell, list[Turn]]:
    """Run every turn of every combination; each prompt is in one turn, or in two to fill the last batch."""
    stand = MethodComparison(
        model_path(arguments.model), prompts, arguments.methods, arguments.tokens, time.process_time
    )
    stand.warm_up(CPU)
    cells = [
        Cell(CPU, kind, temperature, batch)
        for batch in arguments.batch_sizes
        for temperature in arguments.temperatures
        for kind in prompts
    ]
    turns: dict[Cell, list[Turn]] = {cell: [] for cell in cells}
    with bar(None, sum(-(-len(prompts[cell.prompts]) // cell.streams) for cell in cells), "turn") as progress:
        for cell in cells:
            progress.set_description(cell.label)
            for number in range(-(-len(prompts[cell.prompts]) // cell.streams)):
                stand.forget()
                turns[cell].append(stand.turn(cell, number, [NONE, *arguments.methods]))
                progress.update()
    return turns


def summarise(method: str, by_kind: Mapping[str, Sequence[Turn]]) -> dict[str, Any]:
    """The figures of a method at one batch size and temperature."""
    turns = [turn for some in by_kind.values() for turn in some]
    records: list[CellRecord] = [turn[method] for turn in turns]
    n_texts = sum(len(record.seconds) for record in records)
    n_tokens = sum(record.tokens for record in records)
    return {
        "over_autoregressive": _over_none(method, turns).interval,
        "by_kind": {kind: _over_none(method, some).ratio for kind, some in by_kind.items()},
        "tokens_per_s": n_tokens / sum(sum(record.seconds) for record in records),
        "tokens_per_forward": (n_tokens - n_texts) / max(1, sum(record.forwards for record in records)),
        "identical": sum(turn[method].digest == turn[NONE].digest for turn in turns),
        "turns": len(turns),
    }


def _over_none(method: str, turns: Sequence[Turn]) -> Comparison:
    return compare([turn[NONE].seconds for turn in turns], [turn[method].seconds for turn in turns])


def report(
    found: Mapping[Cell, Sequence[Turn]], methods: Sequence[str], settings: Mapping[str, Any]
) -> BenchmarkReport:
    """The table and the document."""
    rows: list[list[str]] = []
    entries: list[dict[str, Any]] = []
    for batch, temperature in dict.fromkeys((cell.streams, cell.temperature) for cell in found):
        by_kind = {
            cell.prompts: turns
            for cell, turns in found.items()
            if (cell.streams, cell.temperature) == (batch, temperature)
        }
        for method in (NONE, *methods):
            one = summarise(method, by_kind)
            interval: Interval = one["over_autoregressive"]
            cells = [method, str(batch), f"{temperature:g}", shown(interval)]
            cells += [" / ".join(f"{kind} {ratio:.2f}" for kind, ratio in one["by_kind"].items())]
            cells += [f"{one['tokens_per_s']:.1f}", f"{one['tokens_per_forward']:.2f}"]
            rows.append([*cells, f"{one['identical']}/{one['turns']}"])
            entry = {"method": method, "batch_size": batch, "temperature": temperature}
            entries.append(entry | one | {"over_autoregressive": asdict(interval)})
    differs = any(entry["identical"] < entry["turns"] for entry in entries)
    return BenchmarkReport({**settings, "rows": entries}, markdown(HEAD, rows), differs)


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print."""
    arguments = parsed(given)
    torch.set_num_threads(1)
    prompts = prompts_of(arguments)
    settings = {"model": arguments.model, "tokens": arguments.tokens, "half": arguments.half}
    found = report(measure(arguments, prompts), arguments.methods, settings)
    print(found.tables, flush=True)
    return found.publish(None)


if __name__ == "__main__":
    raise SystemExit(main())
