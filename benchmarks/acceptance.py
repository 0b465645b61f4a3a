"""Tokens per target forward of drafting methods and of their settings, by kind of prompt.

For each row: all tokens, and pre-loop (a text counts only until it begins to repeat itself). Every output is checked to
be identical to autoregressive decoding. ``--rows`` chooses:

    all, short   SPECTRA's core and what its settings do; short leaves the latter out
    paper        SPECTRA, its ablations and baselines, as published (Le et al., 2025, tables 2 to 6); --retrieval
    ngrams       pld, anpd, lookahead and spectra-core, and their settings
    mixed        suffix and token-recycling, alone and together; the target's vocabulary is read first, once
    draft        draft-model with --draft-model
    trained      a trained drafter (--drafter), alone, beside suffix+token-recycling, and with it
    retrieval    what texts to look up add (--retrieval), and guesses by source: one folder, file or snapshot as on the
                 command line, or several files and folders of text as one index
    peers        goose, adapld and stand beside ours at 64 and 16 nodes, cold and warm
    pld-plus     PLD+ against prompt lookup; --categories summarization,rag is what PLD+ was made for

A row of 36 prompts takes 2 to 6 minutes with the default model. The last line of stdout is one JSON document.

    python -m benchmarks.acceptance --prompts DIR --rows ngrams [--temperature 0.8]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from app.bench.figures import steps_before
from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.libraries import library_at
from app.inputs.models import model_path
from app.inputs.text_index import index_of
from app.inputs.tokenizers import load_tokenizer
from app.reporting.report import as_line
from app.reporting.summaries import loop_start
from app.speculation.heads import encoded, longest_prompt, model_heads
from app.speculation.vocabulary import beginnings, read_rows
from benchmarks.acceptance_rows import (
    AcceptanceRow,
    draft_rows,
    peers_rows,
    pld_plus_rows,
    retrieval_rows,
    rows,
    trained_rows,
)
from benchmarks.paper_rows import paper_rows
from benchmarks.support.prompt_sets import FILES, USUAL, questions
from benchmarks.support.reporting import heading, row
from engine.drafter.settings import DrafterSettings
from engine.loop import Completion, Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from retrieval_store.index.index import FixedLibrary, Library
from retrieval_store.snapshots.corpus import read_documents
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool

ROWS = ("all", "short", "paper", "ngrams", "mixed", "draft", "trained", "retrieval", "peers", "pld-plus")


def library_of(places: Sequence[str], model: str) -> Library:
    """What ``--retrieval`` names.

    Raises:
        ConfigError: there is nothing to read.
    """
    if len(places) == 1:
        at = library_at(places[0], model)
        assert at is not None
        return at()
    documents = [document for place in places for document in read_documents(Path(place))]
    return FixedLibrary(index_of(documents, load_tokenizer(Path(model))))


def by_source(done: Mapping[str, list[Completion]]) -> dict[str, dict[str, int]]:
    """Nodes every source drafted, and how many of them were accepted."""
    counts: dict[str, dict[str, int]] = {}
    for completion in (completion for completions in done.values() for completion in completions):
        for source, counted in completion.stats.by_source.items():
            sums = counts.setdefault(source, {"drafted": 0, "accepted": 0})
            sums["drafted"] += counted.drafted
            sums["accepted"] += counted.accepted
    return counts


def figures(done: Mapping[str, list[Completion]]) -> dict[str, Any]:
    """Tokens per forward over all kinds and by kind, with and without loops."""
    total, before = [0, 0], [0, 0]
    kinds: dict[str, float] = {}
    for kind, completions in done.items():
        kind_total = [0, 0]
        for completion in completions:
            steps = completion.stats.step_tokens
            for counts, cut in ((total, None), (before, loop_start(completion.token_ids))):
                tokens, forwards = steps_before(cut, steps)
                counts[0] += tokens
                counts[1] += forwards
            tokens, forwards = steps_before(loop_start(completion.token_ids), steps)
            kind_total[0] += tokens
            kind_total[1] += forwards
        kinds[kind] = round(kind_total[0] / max(1, kind_total[1]), 3)
    return {
        "tokens_per_forward": round(total[0] / max(1, total[1]), 3),
        "pre_loop": round(before[0] / max(1, before[1]), 3),
        "pre_loop_by_kind": kinds,
    }


def run_row(
    target: LocalTarget,
    row: AcceptanceRow,
    prompts: Mapping[str, list[list[int]]],
    params: SamplingParams,
    batch: int,
    bar: Any,
) -> dict[str, list[Completion]]:
    """All prompts, each with cold state unless the row is warm."""
    options = row.options or SpeculatorOptions()
    if row.core is not None:
        options = SpeculatorOptions().with_settings(row.core)
    done: dict[str, list[Completion]] = {}
    kept = SpeculatorPool(options) if row.warm else None
    for kind, ids in prompts.items():
        pool = SpeculatorPool(options) if kept is None else kept
        engine = Engine(target, pool, SchedulerOptions(prefix_cache=False))
        jobs = [Request(prompt, params, row.method, row.max_nodes) for prompt in ids]
        finished: dict[int, Completion] = {}
        for index, completion in engine.run(jobs, 1 if row.warm else batch):
            finished[index] = completion
            bar.update()
        done[kind] = [finished[i] for i in range(len(ids))]
    return done


def table_of(arguments: argparse.Namespace, target: LocalTarget) -> dict[str, AcceptanceRow]:
    """The rows of ``--rows``, ``--draft-model`` and ``--only``."""
    model = arguments.model
    if arguments.rows == "draft":
        table = {"autoregressive": AcceptanceRow("autoregressive")}
    elif arguments.rows == "trained":
        assert target.info.drafter is not None, "parsed() refuses this"
        table = trained_rows(target.info.drafter.method, read_rows(target, beginnings(model)))
    elif arguments.rows == "retrieval":
        table = retrieval_rows(library_of(arguments.retrieval, str(model)))
    elif arguments.rows == "paper":
        table = paper_rows(library_of(arguments.retrieval, str(model)))
    elif arguments.rows == "peers":
        table = peers_rows(target.info.spec.n_layers)
    elif arguments.rows == "pld-plus":
        spec = target.info.spec
        table = pld_plus_rows(spec.n_layers, model_heads(model, spec, None, lambda: target))
    else:
        vocabulary = read_rows(target, beginnings(model)) if arguments.rows == "mixed" else None
        table = rows(arguments.rows, vocabulary)
    if arguments.draft_model is not None:
        table |= draft_rows(arguments.draft_model)
    wanted = {"autoregressive", *(arguments.only or table)}
    return {label: row for label, row in table.items() if label in wanted}


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=model_path, default=DEFAULT_MODEL, help="(default: %(default)s)")
    parser.add_argument("--prompts", type=Path, required=True, help="folder with spec_bench, gsm8k and humaneval")
    parser.add_argument("--categories", default="", help="of Spec-Bench, comma-separated, not chat, math and code")
    parser.add_argument("--files", default=",".join(USUAL), help=f"kinds of prompts, of {', '.join(FILES)}")
    parser.add_argument(
        "--offset", type=int, default=0, help="of the first prompt in its file: other prompts (default: 0)"
    )
    parser.add_argument("--per-kind", type=int, default=12, help="prompts of each kind (default: 12)")
    parser.add_argument("--max-tokens", type=int, default=128, help="of an answer (default: 128)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: greedy (default)")
    parser.add_argument("--seed", type=int, default=0, help="of sampling (default: 0)")
    parser.add_argument("--batch-size", type=int, default=12, help="changes the time, not the figures (default: 12)")
    parser.add_argument("--rows", choices=ROWS, default="all", help="which methods and settings (default: all)")
    parser.add_argument(
        "--retrieval", nargs="+", metavar="WHERE", help="texts or a snapshot, for --rows retrieval and paper"
    )
    parser.add_argument("--only", nargs="+", metavar="LABEL", help="these rows alone; autoregressive stays")
    parser.add_argument(
        "--draft-model", type=Path, help="small model: adds rows of draft-model; needed for --rows draft"
    )
    parser.add_argument("--drafter", help="drafter that was trained for the model, for --rows trained")
    arguments = parser.parse_args()
    needed = (("retrieval", "retrieval"), ("paper", "retrieval"), ("draft", "draft_model"), ("trained", "drafter"))
    for name, flag in needed:
        if arguments.rows == name and getattr(arguments, flag) is None:
            parser.error(f"--rows {name} needs --{flag.replace('_', '-')}")
    return arguments


def main() -> None:
    """Measure and print."""
    arguments = parsed()
    torch.set_num_threads(1)
    drafter = None if arguments.drafter is None else DrafterSettings(arguments.drafter)
    target = LocalTarget.load(TargetOptions(str(arguments.model), drafter=drafter), arguments.model)
    longest = longest_prompt(target, arguments.max_tokens)
    categories = [name for name in arguments.categories.split(",") if name]
    files = arguments.files.split(",")
    asked = questions(arguments.prompts, arguments.per_kind, categories, files, arguments.offset)
    prompts = {kind: encoded(arguments.model, some, longest) for kind, some in asked.items()}
    params = SamplingParams(
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        seed=arguments.seed,
        stop_ids=target.info.spec.eos_ids,
    )
    report(target, prompts, params, table_of(arguments, target), arguments)


def report(
    target: LocalTarget,
    prompts: Mapping[str, list[list[int]]],
    params: SamplingParams,
    table: Mapping[str, AcceptanceRow],
    arguments: argparse.Namespace,
) -> None:
    """Run every row and print the table and the JSON document."""
    n_prompts = sum(map(len, prompts.values()))
    bar = tqdm(total=n_prompts * len(table), unit="text", file=sys.stderr)
    results: dict[str, Any] = {}
    reference: dict[str, list[list[int]]] = {}
    print(heading(("method", "all tokens", f"pre-loop ({' / '.join(prompts)})", "identical")))
    for label, settings in table.items():
        done = run_row(target, settings, prompts, params, arguments.batch_size, bar)
        texts = {kind: [completion.token_ids for completion in completions] for kind, completions in done.items()}
        reference = reference or texts
        same = sum(a == b for kind in texts for a, b in zip(texts[kind], reference[kind], strict=True))
        result = results[label] = figures(done) | {"identical": same, "of": n_prompts, "by_source": by_source(done)}
        kinds = " / ".join(f"{value:.2f}" for value in result["pre_loop_by_kind"].values())
        every, before = result["tokens_per_forward"], result["pre_loop"]
        print(row((label, f"{every:.2f}", f"{before:.2f} ({kinds})", f"{same}/{n_prompts}")), flush=True)
    bar.close()
    loops = sum(loop_start(ids) is not None for texts in reference.values() for ids in texts)
    document = {
        "model": arguments.model.name,
        "temperature": params.temperature,
        "seed": params.seed,
        "prompts": n_prompts,
        "outputs_that_loop": loops,
        "rows": results,
    }
    print(as_line(document))


if __name__ == "__main__":
    main()
