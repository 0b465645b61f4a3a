"""Tokens per target forward of every available method and of SPECTRA-CORE's ablations (paper 000, table 2).

For each row: all tokens, and pre-loop (a text counts only until it begins to repeat itself), by kind of prompt. Every
output is checked to be identical to autoregressive decoding. Last line: one JSON document.

    python -m benchmarks.acceptance --model DIR --prompts DIR [--temperature 0.8] [--rows ...]

``--rows retrieval --retrieval WHERE ..`` measures what texts from outside add, and counts guesses by source (paper 000,
figure 3): one folder, file or snapshot as on the command line, or several files and folders of text as one index.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from app.bench.loops import loop_start, steps_before
from app.demo.paths import DEMO_TARGET
from app.libraries import library_at
from app.prompts import Question, encode_chat
from app.retrieval import index_of
from app.tokenizers import load_tokenizer
from benchmarks.prompt_sets import questions
from engine.loop import Completion, Engine, Job
from engine.sampling.params import SamplingParams
from engine.target import LocalTarget, TargetOptions
from retrieval_store.corpus import read_documents
from retrieval_store.library import FixedLibrary, Library
from speculators.anpd import AnpdConfig
from speculators.draft_model import DraftModelConfig
from speculators.lookahead import LookaheadConfig
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions
from speculators.rest import RestConfig
from speculators.spectra import SpectraConfig
from speculators.spectra_core import SpectraCoreConfig
from speculators.spectra_retrieval import SpectraRetrievalConfig
from speculators.suffix import SuffixConfig
from speculators.token_recycling import TokenRecyclingConfig


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    method: str
    core: SpectraCoreConfig | None = None
    max_nodes: int = 64
    options: SpeculatorOptions | None = None  # of other methods than the core
    warm: bool = False  # one pass over the prompts, one by one, with state kept from each to the next


def rows(which: str) -> dict[str, Row]:
    """Rows by label; ``short`` leaves the ablations out, ``ngrams`` compares the n-gram methods."""
    if which == "ngrams":
        return ngram_rows()
    if which == "mixed":
        return mixed_rows()
    paper, ours = SpectraCoreConfig.paper(), SpectraCoreConfig()
    short = {
        "autoregressive": Row("autoregressive"),
        "pld": Row("pld"),
        "spectra-core, as published, 128 nodes": Row("spectra-core", paper, 128),
        "spectra-core": Row("spectra-core", ours),
        "spectra-core, 16 nodes": Row("spectra-core", ours, 16),
        "pld+spectra-core": Row("pld+spectra-core", ours),
    }
    if which == "short":
        return short
    published = {
        "published w/o forward dict": replace(paper, use_forward=False),
        "published w/o backward dict": replace(paper, use_backward=False),
        "published w/o sub-n-grams": replace(paper, use_sub_ngrams=False),
        "published, our guess order": replace(paper, guess_order="backward-first"),
        "published + learns prompt": replace(paper, learn_from_prompt=True),
        "published + learns prompt and output": replace(paper, learn_from_prompt=True, learn_from_output=True),
    }
    always_best = replace(paper, tau_refine=1.0)
    published |= {
        "published, tau_refine 1.0": always_best,
        "same w/o forward dict": replace(always_best, use_forward=False),
        "same w/o backward dict": replace(always_best, use_backward=False),
        "same w/o sub-n-grams": replace(always_best, use_sub_ngrams=False),
    }
    default = {
        "w/o forward dict": replace(ours, use_forward=False),
        "w/o backward dict": replace(ours, use_backward=False),
        "w/o sub-n-grams": replace(ours, use_sub_ngrams=False),
        "w/o learning the prompt": replace(ours, learn_from_prompt=False),
        "w/o learning the output": replace(ours, learn_from_output=False),
        "paper's guess order": replace(ours, guess_order="paper"),
        "tau_refine 0.1": replace(ours, tau_refine=0.1),
        "tau_refine 0.5": replace(ours, tau_refine=0.5),
        "backward_tokens 5": replace(ours, backward_tokens=5),
        "backward_tokens 20": replace(ours, backward_tokens=20),
        "one pool row, no probe share": replace(ours, probe_share=0.0, pool_rows=1),
        "probe_share 0.2": replace(ours, probe_share=0.2),
        "probe_share 0.6": replace(ours, probe_share=0.6),
    }
    return (
        short
        | {label: Row("spectra-core", config, 128) for label, config in published.items()}
        | {label: Row("spectra-core", config) for label, config in default.items()}
    )


def mixed_rows() -> dict[str, Row]:
    """The mixed model, its halves, what they come from, and what other methods add to it."""
    both = "suffix+token-recycling"
    paper = SpeculatorOptions(
        suffix=SuffixConfig(mode="paper"), token_recycling=TokenRecyclingConfig(mode="paper", use_prompt=False)
    )
    prompt = replace(paper, token_recycling=TokenRecyclingConfig(mode="paper"))
    return {
        "autoregressive": Row("autoregressive"),
        "suffix, published": Row("suffix", options=paper),
        "suffix": Row("suffix"),
        "token-recycling, published, 80 nodes": Row("token-recycling", max_nodes=80, options=paper),
        "token-recycling, published + prompt's logits, 80 nodes": Row("token-recycling", max_nodes=80, options=prompt),
        "token-recycling": Row("token-recycling"),
        both: Row(both),
        f"{both}, 16 nodes": Row(both, max_nodes=16),
        f"{both}, 8 nodes": Row(both, max_nodes=8),
        "both published, combined": Row(both, options=prompt),
        f"{both}+spectra-core": Row(f"{both}+spectra-core"),
        f"{both}+lookahead": Row(f"{both}+lookahead"),
        f"{both}+pld+anpd": Row(f"{both}+pld+anpd"),
        f"{both}, warm": Row(both, options=SpeculatorOptions().warm(), warm=True),
        f"{both}, 16 nodes, warm": Row(both, max_nodes=16, options=SpeculatorOptions().warm(), warm=True),
        "token-recycling, published, 80 nodes, warm": Row("token-recycling", None, 80, paper.warm(), warm=True),
    }


def ngram_rows() -> dict[str, Row]:
    """pld, anpd, lookahead and spectra-core, and what the options of the middle two do."""

    def anpd(config: AnpdConfig) -> Row:
        return Row("anpd", options=SpeculatorOptions(anpd=config))

    def lookahead(**changes: Any) -> Row:
        return Row("lookahead", options=SpeculatorOptions(lookahead=replace(LookaheadConfig.paper(), **changes)))

    return {
        "autoregressive": Row("autoregressive"),
        "pld": Row("pld"),
        "anpd, as published (a chain of 6)": anpd(AnpdConfig.paper()),
        "anpd, a chain of 16": anpd(replace(AnpdConfig.paper(), draft_tokens=16)),
        "anpd": Row("anpd"),
        "anpd, 16 nodes": Row("anpd", max_nodes=16),
        "lookahead, as published": lookahead(),
        "+ prompt": lookahead(learn_from_prompt=True),
        "+ output": lookahead(learn_from_output=True),
        "+ prompt and output": lookahead(learn_from_prompt=True, learn_from_output=True),
        "lookahead": Row("lookahead"),
        "lookahead, 16 nodes": Row("lookahead", max_nodes=16),
        "anpd+lookahead": Row("anpd+lookahead"),
        "spectra-core": Row("spectra-core"),
        "spectra-core, 16 nodes": Row("spectra-core", max_nodes=16),
    }


def retrieval_rows(library: Library) -> dict[str, Row]:
    """The two parts of SPECTRA, the ways they can share a tree, and rest, with guesses counted by dictionary."""
    labelled = SpectraCoreConfig(label_dictionaries=True)
    published = replace(SpectraCoreConfig.paper(), label_dictionaries=True)
    ours = SpeculatorOptions(retrieval=lambda: library, spectra_core=labelled)
    paper = replace(
        ours,
        rest=RestConfig.paper(),
        spectra_core=published,
        spectra_retrieval=SpectraRetrievalConfig.paper(),
        spectra=SpectraConfig("paper"),
    )

    def spectra(config: SpectraConfig, max_nodes: int = 64, **core: Any) -> Row:
        options = replace(ours, spectra=config, spectra_core=replace(labelled, **core))
        return Row("spectra", None, max_nodes, options)

    score, priority, flat = SpectraConfig("score"), SpectraConfig("priority"), SpectraConfig("paper")
    unreserved = SpectraConfig("priority", reserve=0)
    return {
        "autoregressive": Row("autoregressive"),
        "spectra-core, as published, 128 nodes": Row("spectra-core", None, 128, paper),
        "rest, as published": Row("rest", options=paper),
        "spectra-retrieval, first match alone": Row("spectra-retrieval", options=paper),
        "spectra, as published, 128 nodes": Row("spectra", None, 128, paper),
        "spectra-core": Row("spectra-core", options=ours),
        "rest": Row("rest", options=ours),
        "spectra-retrieval": Row("spectra-retrieval", options=ours),
        "spectra, score": spectra(score),
        "spectra, priority": spectra(priority),
        "spectra, priority, no reserve": spectra(unreserved),
        "spectra, paper's order": spectra(flat),
        "spectra, score, no probe share": spectra(score, probe_share=0.0),
        "spectra-core+spectra-retrieval": Row("spectra-core+spectra-retrieval", options=ours),
        "spectra-core, 16 nodes": Row("spectra-core", None, 16, ours),
        "spectra, score, 16 nodes": spectra(score, 16),
        "spectra, priority, 16 nodes": spectra(priority, 16),
        "spectra, priority, no reserve, 16 nodes": spectra(unreserved, 16),
        "spectra, paper's order, 16 nodes": spectra(flat, 16),
        "spectra, score, no probe share, 16 nodes": spectra(score, 16, probe_share=0.0),
    }


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


def draft_rows(path: Path) -> dict[str, Row]:
    """draft-model with the small model in ``path``: chains, trees, and what lookup adds to them."""

    def drafting(n_nodes: int, k: int = 5, method: str = "draft-model", **changes: Any) -> Row:
        config = DraftModelConfig(str(path), draft_tokens=k, tree_nodes=n_nodes, **changes)
        return Row(method, options=SpeculatorOptions(draft_model=config))

    return {
        "draft-model, chain of 5": drafting(0),
        "draft-model, chain of 10": drafting(0, 10),
        "draft-model, tree of 5": drafting(5),
        "draft-model, tree of 10": drafting(10),
        "draft-model, tree of 16": drafting(16),
        "draft-model, tree of 16, beam 4": drafting(16, tree_beam=4),
        "draft-model, tree of 32": drafting(32),
        "draft-model, tree of 64": drafting(64),
        "draft-model, tree of 64, 8 deep": drafting(64, 8),
        "draft-model+pld, tree of 16": drafting(16, method="draft-model+pld"),
    }


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
    target: LocalTarget, row: Row, prompts: Mapping[str, list[list[int]]], params: SamplingParams, batch: int, bar: Any
) -> dict[str, list[Completion]]:
    """All prompts, each with cold state unless the row is warm."""
    options = row.options or SpeculatorOptions()
    if row.core is not None:
        options = SpeculatorOptions(spectra_core=row.core)
    done: dict[str, list[Completion]] = {}
    kept = SpeculatorPool(options) if row.warm else None
    for kind, ids in prompts.items():
        engine = Engine(target, SpeculatorPool(options) if kept is None else kept)
        jobs = [Job(prompt, params, row.method, row.max_nodes) for prompt in ids]
        finished: dict[int, Completion] = {}
        for index, completion in engine.run(jobs, 1 if row.warm else batch):
            finished[index] = completion
            bar.update()
        done[kind] = [finished[i] for i in range(len(ids))]
    return done


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DEMO_TARGET, help="checkpoint directory (default: demo)")
    parser.add_argument("--prompts", type=Path, required=True, help="folder with spec_bench, gsm8k and humaneval")
    parser.add_argument("--per-kind", type=int, default=12, help="prompts of each kind (default: 12)")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=12, help="changes the time, not the figures (default: 12)")
    parser.add_argument("--rows", choices=("all", "short", "ngrams", "mixed", "draft", "retrieval"), default="all")
    parser.add_argument("--retrieval", nargs="+", metavar="WHERE", help="texts or a snapshot, for --rows retrieval")
    parser.add_argument(
        "--only", nargs="+", metavar="LABEL", help="these rows of the table alone; autoregressive stays"
    )
    parser.add_argument(
        "--draft-model", type=Path, help="small model: adds rows of draft-model; for 'draft', no others"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    target = LocalTarget.load(TargetOptions(str(arguments.model)), arguments.model)
    tokenizer = load_tokenizer(arguments.model)

    def encoded(question: Question) -> list[int]:
        return encode_chat(tokenizer, [{"role": "user", "content": question.turns[0]}])

    prompts = {k: [encoded(q) for q in qs] for k, qs in questions(arguments.prompts, arguments.per_kind).items()}
    params = SamplingParams(
        max_tokens=arguments.max_new_tokens,
        temperature=arguments.temperature,
        seed=arguments.seed,
        stop_ids=target.info.spec.eos_ids,
    )
    table = {"autoregressive": Row("autoregressive")} if arguments.rows == "draft" else {}
    if arguments.rows == "retrieval":
        if arguments.retrieval is None:
            parser.error("--rows retrieval needs --retrieval WHERE")
        table = retrieval_rows(library_of(arguments.retrieval, str(arguments.model)))
    table = table or rows(arguments.rows)
    if arguments.draft_model is not None:
        table |= draft_rows(arguments.draft_model)
    wanted = {"autoregressive", *(arguments.only or table)}
    table = {label: row for label, row in table.items() if label in wanted}
    report(target, prompts, params, table, arguments)


def report(
    target: LocalTarget,
    prompts: Mapping[str, list[list[int]]],
    params: SamplingParams,
    table: Mapping[str, Row],
    arguments: argparse.Namespace,
) -> None:
    """Run every row and print the table and the JSON document."""
    n_prompts = sum(map(len, prompts.values()))
    bar = tqdm(total=n_prompts * len(table), unit="text", file=sys.stderr)
    results: dict[str, Any] = {}
    reference: dict[str, list[list[int]]] = {}
    print(f"| method | all tokens | pre-loop ({' / '.join(prompts)}) | identical |")
    print("|---|---|---|---|")
    for label, row in table.items():
        done = run_row(target, row, prompts, params, arguments.batch_size, bar)
        texts = {kind: [completion.token_ids for completion in completions] for kind, completions in done.items()}
        reference = reference or texts
        same = sum(a == b for kind in texts for a, b in zip(texts[kind], reference[kind], strict=True))
        result = results[label] = figures(done) | {"identical": same, "of": n_prompts, "by_source": by_source(done)}
        kinds = " / ".join(f"{value:.2f}" for value in result["pre_loop_by_kind"].values())
        every, before = result["tokens_per_forward"], result["pre_loop"]
        print(f"| {label} | {every:.2f} | {before:.2f} ({kinds}) | {same}/{n_prompts} |", flush=True)
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
    print(json.dumps(document))


if __name__ == "__main__":
    main()
