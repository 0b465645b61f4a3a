"""Our draft-model and pld beside Hugging Face's assisted generation and prompt lookup, on the same prompts.

Hugging Face drafts 5 tokens with the same small model (constant schedule, no confidence threshold) or looks up 10; ours
run with the same numbers, as a chain and as trees. Forwards of the target are counted by wrapping its ``forward``; what
each committed is read from the streamer. Two figures for both sides:

* *decode*: tokens per forward without the first one, which reads the prompt. This is what the other tables count;
* *all*: tokens per forward, the first one included. Hugging Face drafts behind the prompt before it has read it, so its
  first forward may commit several tokens; ours commits one.

Times are of a whole run, divided; *drafting* and *scoring* are medians per step, in ms. Texts are compared with Hugging
Face's ``generate``; with --temperature both sides sample, and ours are compared with our own autoregressive ones. Ten
minutes with 36 prompts. The last line of stdout is one JSON document.

    python -m benchmarks.assisted --model DIR --draft-model DIR --prompts DIR [--temperature 0.8]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tqdm import tqdm

from app.inputs.prompts import encode_chat
from app.inputs.tokenizers import load_tokenizer
from app.reporting.report import as_line, number
from benchmarks.hugging_face import GeneratedText, K, hugging_face
from benchmarks.support.prompt_sets import questions
from benchmarks.support.reporting import heading, row
from engine.loop import Engine
from engine.request import Request
from engine.sampling.params import SamplingParams, VerificationRule
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from speculators.draft_model.config import DraftModelConfig
from speculators.method import SpeculatorOptions
from speculators.ngrams.pld import PldConfig
from speculators.pool import SpeculatorPool

COLUMNS = (
    *("", "tokens per forward: decode", "all", "ms per step", "ms per token", "drafting", "scoring"),
    *("forwards", "equal texts"),
)


@dataclass(slots=True)
class Result:
    """All outputs of one row."""

    texts: list[GeneratedText] = field(default_factory=list)
    seconds: float = 0.0
    drafting: list[float] = field(default_factory=list)  # seconds of every call, ours only
    scoring: list[float] = field(default_factory=list)  # seconds of every step of the target, ours only

    def figures(self) -> dict[str, float | None]:
        """Tokens per forward, milliseconds (None: not measured), and forwards of the target."""
        tokens, decoding = sum(sum(t.steps) for t in self.texts), sum(len(t.steps) for t in self.texts)
        n_all, forwards = tokens + sum(text.first for text in self.texts), decoding + len(self.texts)
        return {
            "decode": round(tokens / max(1, decoding), 3),
            "all": round(n_all / forwards, 3),
            "ms_per_step": round(1e3 * self.seconds / forwards, 2),
            "ms_per_token": round(1e3 * self.seconds / n_all, 2),
            "median_drafting_ms": round(1e3 * median(self.drafting), 2) if self.drafting else None,
            "median_scoring_ms": round(1e3 * median(self.scoring), 2) if self.scoring else None,
            "forwards": forwards,
        }


@dataclass(frozen=True, slots=True)
class Ours:
    """A row of ours."""

    method: str
    options: SpeculatorOptions = field(default_factory=SpeculatorOptions)
    verification: VerificationRule = "coupled"


def ours(drafter: str, is_sampled: bool) -> dict[str, Ours]:
    """Rows of ours by label."""

    def drafting(n_nodes: int, verification: VerificationRule = "coupled") -> Ours:
        config = DraftModelConfig(draft_tokens=K, tree_nodes=n_nodes)
        return Ours("draft-model", SpeculatorOptions(draft_model=drafter).with_settings(config), verification)

    first = SpeculatorOptions().with_settings(PldConfig(tie_break="first"))
    rows = {
        "autoregressive": Ours("autoregressive"),
        f"draft-model, chain of {K}": drafting(0),
        f"draft-model, tree of {K}": drafting(K),
        "draft-model, tree of 16": drafting(16),
        "draft-model, tree of 64": drafting(64),
        "pld": Ours("pld"),
        "pld, first match": Ours("pld", first),
    }
    if is_sampled:
        rows[f"draft-model, chain of {K}, rejection"] = drafting(0, verification="rejection")
        rows["pld, rejection"] = Ours("pld", verification="rejection")
    return rows


def run_ours(target: LocalTarget, mine: Ours, prompts: Sequence[list[int]], params: SamplingParams) -> Result:
    """All prompts, one after the other, state cold."""
    result = Result()
    engine = Engine(target, SpeculatorPool(mine.options), SchedulerOptions(prefix_cache=False))
    engine.complete(Request(prompts[0], params, mine.method))  # loads the small model
    _time(engine.pool, "advance", result.drafting)
    _time(target, "step", result.scoring)
    began = time.perf_counter()
    for prompt in prompts:
        done = engine.complete(Request(prompt, params, mine.method))
        result.texts.append(GeneratedText(done.token_ids, 1, done.stats.step_tokens))
    result.seconds = time.perf_counter() - began
    del target.step  # the wrapper
    return result


def _time(owner: Any, name: str, seconds: list[float]) -> None:
    """Note how long every call of a method of ``owner`` takes."""
    call = getattr(owner, name)

    def timed(*args: Any) -> Any:
        began = time.perf_counter()
        result = call(*args)
        seconds.append(time.perf_counter() - began)
        return result

    setattr(owner, name, timed)


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(arguments.model)
    asked = [q for some in questions(arguments.prompts, arguments.per_kind).values() for q in some]
    prompts = [encode_chat(tokenizer, [{"role": "user", "content": question.turns[0]}]) for question in asked]
    results: dict[str, Result] = {}
    for label, generate in {} if arguments.ours_only else hugging_face(arguments).items():
        results[label] = Result()
        began = time.perf_counter()
        results[label].texts = [generate(prompt) for prompt in tqdm(prompts, desc=label, file=sys.stderr)]
        results[label].seconds = time.perf_counter() - began
    target = LocalTarget.load(TargetOptions(str(arguments.model)), arguments.model)
    for label, mine in ours(str(arguments.draft_model), arguments.temperature > 0).items():
        params = SamplingParams(
            max_tokens=arguments.max_tokens,
            temperature=arguments.temperature,
            seed=arguments.seed,
            stop_ids=target.info.spec.eos_ids,
            verification=mine.verification,
        )
        results[label] = run_ours(target, mine, prompts, params)
    report(results, arguments)


def report(results: Mapping[str, Result], arguments: argparse.Namespace) -> None:
    """The table, and the JSON document."""
    reference = results.get("HF generate", results["autoregressive"])
    rows: dict[str, Any] = {}
    print(heading(COLUMNS))
    for label, result in results.items():
        figures = result.figures()
        same = sum(a.ids == b.ids for a, b in zip(result.texts, reference.texts, strict=True))
        rows[label] = figures | {"identical": same, "of": len(result.texts)}
        *shown, forwards = figures.values()
        print(row((label, *map(number, shown), forwards, f"{same}/{len(result.texts)}")))
    document = {"model": arguments.model.name, "temperature": arguments.temperature, "seed": arguments.seed}
    if arguments.texts:
        arguments.texts.write_text(json.dumps({k: [asdict(t) for t in v.texts] for k, v in results.items()}))
    print(as_line(document | {"rows": rows}))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="checkpoint directory of the target")
    parser.add_argument("--draft-model", type=Path, required=True, help="checkpoint directory of the small model")
    parser.add_argument("--prompts", type=Path, required=True, help="folder with spec_bench, gsm8k and humaneval")
    parser.add_argument("--per-kind", type=int, default=12, help="prompts of each kind (default: 12)")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ours-only", action="store_true", help="leave Hugging Face out: for the times")
    parser.add_argument("--texts", type=Path, help="write every text and its steps to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
