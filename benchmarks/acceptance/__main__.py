"""How many tokens per target forward do drafting methods and their settings give, by kind of prompt?

For each row: tokens per forward with a 95 % bootstrap interval over texts; pre-loop, where a text counts only until it
begins to repeat itself, over all and by kind; the ratio to the first row, pre-loop, with its interval for the same
texts; and drafted nodes per forward, without probes. A picture shows tokens per forward along the text. ``--rows``
chooses a table:

    methods     all training-free methods, as published and by our defaults, with 64 nodes unless a row says otherwise;
                after ``spectra vocabulary read`` a row more. Finds the induction heads of PLD+ first, once a model
    sizes       six of them with 64, 16 and 8 nodes
    mixes       suffix+token-recycling with further sources; and with state kept from prompt to prompt (warm)
    core        settings of spectra-core, and its shapes (N, W)
    lookahead   settings of lookahead, and its shapes
    pld-plus    lengths of PLD+'s drafts, layers, projection, branches
    paper       SPECTRA, its ablations and baselines, as published (Le et al., 2025, tables 2 to 6); --retrieval
    retrieval   what texts to look up add (--retrieval): a folder, file or snapshot as on the command line, or several
                files and folders of text as one index
    draft       draft-model with --draft-model
    trained     suffix+token-recycling, trained drafters (--drafter), and each with it in one tree

The model writes every text once without drafts (--out keeps them). A text does not depend on speculation, so methods
are run on a replay of it; the model scores nodes off the text once for all rows. Methods that read hidden states or
attention, and trained drafters, run on the model itself, and their texts are compared.

``methods`` takes the default model one to two minutes a prompt on one core. The same --out continues a run; rows with
other prompts or settings run again. Exit status 1: a text differs, or a method failed. The last line of stdout is one
JSON document.

    python -m benchmarks.acceptance --prompts DIR --rows methods --kinds tasks --half 1 --out OUT
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from app.config.flags import config_of_flags
from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.libraries import library_at
from app.inputs.models import model_path
from app.inputs.text_index import index_of
from app.inputs.tokenizers import load_tokenizer
from app.reporting.record_file import RecordFile
from app.reporting.report import bar
from app.speculation.heads import encoded, model_heads
from app.speculation.vocabulary import known_rows
from benchmarks.acceptance.report import Measurement, report
from benchmarks.acceptance.rows import TABLES, RowInputs
from benchmarks.acceptance.runs import AcceptanceRun, RowRecord
from benchmarks.support.prompt_sets import KINDS, TASKS, USUAL, questions
from benchmarks.support.recording import TextJob
from engine.errors import ConfigError
from engine.model.identity import model_hash
from engine.target_model.local import LocalTarget
from retrieval_store.index.index import FixedLibrary, Library
from retrieval_store.snapshots.corpus import read_documents
from speculators.pld_plus.speculator import paper_layer

REMEDY = "give another --out"


def parsed(given: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.acceptance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", type=model_path, default=DEFAULT_MODEL, help="(default: %(default)s)")
    add("--prompts", type=Path, required=True, help="folder with the files of the kinds, such as spec_bench.jsonl")
    add(
        "--kinds",
        nargs="+",
        choices=("tasks", *KINDS),
        metavar="KIND",
        default=USUAL,
        help=f"of {', '.join(KINDS)}; tasks: all but chat and edits (default: {' '.join(USUAL)})",
    )
    add("--per-kind", type=positive, default=6, help="prompts of each kind (default: 6)")
    add("--half", type=int, choices=(0, 1), help="0: the first half of each kind's file, 1: the second (default: both)")
    add("--max-tokens", type=positive, default=128, help="of an answer (default: 128)")
    add("--temperature", type=float, default=0.0, help="0: greedy (default)")
    add("--rows", choices=TABLES, default="methods", help="which table (default: %(default)s)")
    add("--only", nargs="+", metavar="LABEL", help="these rows alone")
    add("--retrieval", nargs="+", metavar="WHERE", help="texts or a snapshot, for --rows retrieval and paper")
    add("--draft-model", type=Path, help="small model, for --rows draft")
    add("--drafter", nargs="+", help="drafters that were trained for the model, for --rows trained")
    says = "as of spectra serve (default: depth 6, beam 8)"
    add("--drafter-options", metavar="JSON", default=argparse.SUPPRESS, help=says)
    add("--out", type=Path, help="folder for texts, records and table; a run continues from its records")
    arguments = parser.parse_args(given)
    needed = (("retrieval", "retrieval"), ("paper", "retrieval"), ("draft", "draft_model"), ("trained", "drafter"))
    for name, flag in needed:
        if arguments.rows == name and getattr(arguments, flag) is None:
            parser.error(f"--rows {name} needs --{flag.replace('_', '-')}")
    names = [Path(drafter).name for drafter in arguments.drafter or ()]
    if len({*names}) < len(names):
        parser.error(f"--drafter has two folders of one name: {', '.join(names)}; rows are named by folders")
    return arguments


def positive(text: str) -> int:
    """Return a whole number above 0."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"is {text}; it must be at least 1")
    return number


def library_of(places: Sequence[str], model: Path) -> Library:
    """Return what ``--retrieval`` names; raise ConfigError if there is nothing to read."""
    if len(places) == 1:
        at = library_at(places[0], str(model))
        assert at is not None
        return at()
    documents = [document for place in places for document in read_documents(Path(place))]
    return FixedLibrary(index_of(documents, load_tokenizer(model)))


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print."""
    arguments = parsed(given)
    torch.set_num_threads(1)
    try:
        with TemporaryDirectory() as temporary:
            found = report(measure(arguments, arguments.out or Path(temporary)))
    except ConfigError as error:
        raise SystemExit(f"acceptance: {error}") from error
    print(found.tables, flush=True)
    return found.publish(None if arguments.out is None else folder_of(arguments, arguments.out))


def folder_of(arguments: argparse.Namespace, out: Path) -> Path:
    """Return the folder of one table; texts are next to it, for all tables."""
    return out / f"{arguments.rows}-{arguments.temperature:g}"


def measure(arguments: argparse.Namespace, out: Path) -> Measurement:
    """Run what the records lack; return what is complete."""
    model = arguments.model
    kinds = TASKS if "tasks" in arguments.kinds else tuple(arguments.kinds)
    jobs: dict[str, list[TextJob]] = {}
    drafting = config_of_flags(arguments, ["drafter_options"]).drafter_options
    run = AcceptanceRun(model, jobs, out / "texts", drafting)
    if (longest := run.info.max_model_len - arguments.max_tokens) < 2:
        raise ConfigError(f"--max-tokens is {arguments.max_tokens}; the model's context is {run.info.max_model_len}")
    for kind, some in questions(arguments.prompts, arguments.per_kind, kinds, arguments.half).items():
        jobs[kind] = [
            TextJob(tuple(ids), 1 + i, arguments.temperature, arguments.max_tokens, run.info.spec.eos_ids)
            for i, ids in enumerate(encoded(model, some, longest))
        ]
    settings = {
        "model": f"{model.name} {model_hash(model)[:12]}",
        **{name: getattr(arguments, name) for name in ("per_kind", "half", "max_tokens", "temperature", "rows")},
        **{name: str(value) for name in ("retrieval", "draft_model") if (value := getattr(arguments, name))},
        **drafting.model_dump(exclude_unset=True),
    }
    rows = TABLES[arguments.rows](inputs(arguments, run))
    if unknown := {*(arguments.only or ())} - {*rows}:
        raise ConfigError(f"--only names {', '.join(sorted(unknown))}; the rows are {', '.join(rows)}")
    chosen = {label: row for label, row in rows.items() if not arguments.only or label in arguments.only}
    path = folder_of(arguments, out) / "records.jsonl"
    with RecordFile(path, RowRecord, settings, REMEDY) as file, bar(None, len(chosen) * len(kinds), "row") as shown:

        def begin(name: str) -> None:
            shown.set_description(name)
            shown.update()

        done: list[str] = []
        try:
            for kind in kinds:
                run.measure(kind, chosen, file, begin)
                done.append(kind)
        except KeyboardInterrupt:
            print("stopped; these are the kinds of prompts that are complete", file=sys.stderr)
        records = {label: [file.by_key[label, kind] for kind in done] for label in chosen}
    return Measurement(settings, records, done)


def inputs(arguments: argparse.Namespace, run: AcceptanceRun) -> RowInputs:
    """Return what rows are made of."""
    spec = run.info.spec

    def load() -> LocalTarget:
        return run.target(1 << 14)

    return RowInputs(
        paper_layer(spec.n_layers),
        partial(model_heads, arguments.model, spec, None, load),
        partial(known_rows, arguments.model, spec),
        partial(library_of, arguments.retrieval or (), arguments.model),
        {drafter: _method(run, drafter) for drafter in arguments.drafter or ()},
        arguments.draft_model,
    )


def _method(run: AcceptanceRun, drafter: str) -> str:
    info = run.describe(drafter).drafter
    assert info is not None
    return info.method


if __name__ == "__main__":
    raise SystemExit(main())
