"""Tokens per target forward of PLD+ against prompt lookup, as published and by our defaults.

The prompts are ``benchmarks.acceptance``'s, or the first turns of some of Spec-Bench's categories (``summarization``
and ``rag`` are what PLD+ was made for). The heads are found first, on the built-in prompts. Last line: one JSON
document.

    python -m benchmarks.pld_plus_acceptance --model DIR --prompts DIR [--categories summarization,rag]
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from app.demo.paths import DEMO_TARGET
from app.inputs.cache import model_hash
from app.inputs.prompts import Question, read_questions
from app.speculation.calibration_prompts import PROMPTS
from app.speculation.heads import encoded, find, longest_prompt
from benchmarks.acceptance import report
from benchmarks.acceptance_rows import Row
from benchmarks.prompt_sets import questions
from engine.sampling.params import SamplingParams
from engine.target.local import LocalTarget
from engine.target.options import TargetOptions
from speculators.pld_plus.induction_heads import Heads
from speculators.pld_plus.speculator import PldPlusConfig, paper_layer
from speculators.registry import SpeculatorOptions


def table(n_layers: int, heads: Heads) -> dict[str, Row]:
    """Rows by label."""
    layer = paper_layer(n_layers)
    paper, ours = PldPlusConfig.paper(layer, heads), PldPlusConfig(layer=layer, heads=heads)

    def row(method: str, config: PldPlusConfig, max_nodes: int = 64) -> Row:
        return Row(method, None, max_nodes, SpeculatorOptions(pld_plus=config))

    return {
        "autoregressive": Row("autoregressive"),
        "pld": Row("pld"),
        "pld-plus-h, as published": row("pld-plus-h", paper),
        "pld-plus-a, as published": row("pld-plus-a", paper),
        "pld-plus-h, as published, projected": row("pld-plus-h", replace(paper, dims=ours.dims)),
        "pld-plus-h": row("pld-plus-h", ours),
        "pld-plus-a": row("pld-plus-a", ours),
        "pld-plus-h, 16 nodes": row("pld-plus-h", ours, 16),
    }


def chosen_prompts(folder: Path, categories: str | None, per_kind: int) -> dict[str, list[Question]]:
    """Kind -> its prompts, spread evenly over the file."""
    if categories is None:
        return questions(folder, per_kind)
    every = read_questions(folder / "spec_bench.jsonl")
    chosen = {}
    for category in categories.split(","):
        asked = [question for question in every if question.category == category]
        chosen[category] = asked[:: max(1, len(asked) // per_kind)][:per_kind]
    return chosen


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DEMO_TARGET, help="checkpoint directory (default: demo)")
    parser.add_argument("--prompts", type=Path, required=True, help="folder with spec_bench, gsm8k and humaneval")
    parser.add_argument("--categories", help="of Spec-Bench, comma-separated (default: chat, math and code)")
    parser.add_argument("--per-kind", type=int, default=12, help="prompts of each kind (default: 12)")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=12, help="changes the time, not the figures (default: 12)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    target = LocalTarget.load(TargetOptions(str(arguments.model)), arguments.model)
    longest = longest_prompt(target, arguments.max_new_tokens)
    asked = chosen_prompts(arguments.prompts, arguments.categories, arguments.per_kind)
    prompts = {kind: encoded(arguments.model, some, longest) for kind, some in asked.items()}
    calibration = [Question([text]) for text in PROMPTS]
    found = find(target, model_hash(arguments.model), encoded(arguments.model, calibration, longest_prompt(target)))
    print(f"heads: {', '.join(f'{one.layer}.{one.head} ({one.rate:.2f})' for one in found.heads)}")
    params = SamplingParams(
        max_tokens=arguments.max_new_tokens,
        temperature=arguments.temperature,
        seed=arguments.seed,
        stop_ids=target.info.spec.eos_ids,
    )
    report(target, prompts, params, table(target.info.spec.n_layers, found.pairs), arguments)


if __name__ == "__main__":
    main()
