"""What predicted outputs save, in tokens per target forward.

*Files*: an agent rewrites a file that was edited by 1, 10 or 30 % of its words (clustered and scattered), had symbols
renamed or a function inserted, or a JSON document with other values; the old file is the prediction. Answers are
committed as they are recorded, without a model; "pasted" has the prediction in the prompt instead. *Answers*: the
prediction is what the model itself writes, edited by tokens. Every text is compared with that of plain decoding.

Ten minutes with the default model. Exit status 1: a text differs. The last line of stdout is one JSON document.

    python -m benchmarks.predictions [--model DIR] [--prompts DIR] [--temperature 0.8] [--parts files answers]
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from app.bench.replay import ReplayTarget
from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from app.inputs.prompts import BUILTIN, Question, encode_chat, encode_plain
from app.inputs.tokenizers import load_tokenizer
from app.speculation.heads import encoded, longest_prompt
from benchmarks.predictions.edits import SHARES, clustered, edits, scattered
from benchmarks.support.prompt_sets import questions
from benchmarks.support.reporting import BenchmarkReport, table
from engine.events import RequestStats
from engine.loop import Engine
from engine.request import DEFAULT_NODES, Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.info import Target
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from speculators.pool import SpeculatorPool

PASTED = ", pasted"  # after a method: the prediction is the end of the prompt
REPLAYED = ("prediction", "suffix", "prediction+suffix", f"pld{PASTED}", f"suffix{PASTED}")
JOINED = "prediction+suffix+token-recycling"
ANSWERING = ("suffix+token-recycling", "prediction", JOINED, "auto")
OPTIONS = SchedulerOptions(max_sequences=1, prefix_cache=False)


class PredictionCase(NamedTuple):
    """An answer, and its prediction."""

    kind: str
    prompt: list[int]
    prediction: list[int]
    answer: list[int]


def parsed() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=model_path, default=DEFAULT_MODEL, help="(default: %(default)s)")
    add("--prompts", type=Path, help="folder with spec_bench, gsm8k and humaneval (default: built-in prompts)")
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="(default: both)")
    add("--files", type=int, choices=range(2, 9), default=4, help="of each kind (default: 4)")
    add("--per-kind", type=int, default=2, help="prompts of each kind in --prompts (default: 2)")
    add("--max-tokens", type=int, default=256, help="of an answer (default: 256)")
    add("--temperature", type=float, default=0.0, help="0: greedy (default)")
    add("--seed", type=int, default=0, help="of edits and of sampling (default: 0)")
    add("--out", type=Path, help="folder for result.json and tables.md")
    return parser.parse_args()


def new_engine(target: Target) -> Engine:
    """Return an engine whose speculators have seen nothing."""
    return Engine(target, SpeculatorPool(), OPTIONS)


def complete(engine: Engine, case: PredictionCase, label: str, params: SamplingParams) -> tuple[bool, RequestStats]:
    """Return whether a method writes the answer, and statistics of the request."""
    is_pasted = label.endswith(PASTED)
    prompt = [*case.prompt, *case.prediction] if is_pasted else case.prompt
    predicted = [] if is_pasted else case.prediction
    done = engine.complete(Request(prompt, params, label.removesuffix(PASTED), DEFAULT_NODES, prediction=predicted))
    return done.token_ids == case.answer, done.stats


def measure_methods(
    cases: Sequence[PredictionCase],
    labels: Sequence[str],
    target: Target,
    params: Callable[[PredictionCase], SamplingParams],
) -> tuple[list[dict[str, Any]], int]:
    """Return a row for each kind, with tokens per forward of each method, and how many texts differ."""
    rows: dict[str, dict[str, Any]] = {case.kind: {"kind": case.kind} for case in cases}
    n_differing = 0
    with tqdm(total=len(cases) * len(labels), unit="text", file=sys.stderr) as shown:
        for label in labels:
            for kind, row in rows.items():
                engine, tokens, forwards = new_engine(target), 0, 0
                for case in (case for case in cases if case.kind == kind):
                    if isinstance(target, ReplayTarget):
                        target.answers.append(case.answer)
                    is_equal, stats = complete(engine, case, label, params(case))
                    n_differing += not is_equal
                    tokens, forwards = tokens + sum(stats.step_tokens), forwards + stats.target_forwards
                    shown.update()
                row[label] = round(tokens / max(forwards, 1), 3)
    return [*rows.values()], n_differing


def measure_files(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of the first part, and how many texts differ."""
    tokenizer = load_tokenizer(arguments.model)
    cases = [
        PredictionCase(
            one.kind,
            encode_chat(tokenizer, [{"role": "user", "content": one.request}]),
            encode_plain(tokenizer, one.prediction),
            encode_plain(tokenizer, one.answer),
        )
        for one in edits(arguments.files, arguments.seed)
    ]
    longest = max(len(case.prompt) + len(case.prediction) + len(case.answer) for case in cases)
    target = ReplayTarget(len(tokenizer), longest)
    return measure_methods(cases, REPLAYED, target, lambda case: SamplingParams(max_tokens=len(case.answer)))


def measure_answers(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of the second part, and how many texts differ."""
    target = LocalTarget.load(TargetOptions(str(arguments.model)), arguments.model)
    asked = {"built-in": [Question([text]) for text in BUILTIN[:8]]}
    if arguments.prompts is not None:
        asked = questions(arguments.prompts, arguments.per_kind)
    longest = longest_prompt(target, arguments.max_tokens)
    prompts = [ids for some in asked.values() for ids in encoded(arguments.model, some, longest)]
    params = SamplingParams(  # no end of text: answers are as long as they may be
        max_tokens=arguments.max_tokens, temperature=arguments.temperature, seed=arguments.seed
    )
    engine = new_engine(target)
    answers = [engine.complete(Request(prompt, params, "autoregressive")).token_ids for prompt in prompts]
    cases = [
        PredictionCase(kind, prompt, prediction, answer)
        for kind, predictions in predictions_of(answers, arguments.seed).items()
        for prompt, prediction, answer in zip(prompts, predictions, answers, strict=True)
    ]
    return measure_methods(cases, ANSWERING, target, lambda _: params)


def predictions_of(answers: Sequence[list[int]], seed: int) -> Mapping[str, Iterable[list[int]]]:
    """Return predictions of every answer by kind: itself, itself edited, and another answer."""
    found: dict[str, Iterable[list[int]]] = {"equal": answers}
    for share in SHARES:
        for name, change in (("clustered", clustered), ("scattered", scattered)):
            chance = random.Random(f"{seed}/{share}/{name}")
            found[f"{share:.0%} {name}"] = [change(answer, share, chance) for answer in answers]
    return found | {"useless": [*answers[1:], answers[0]]}


PARTS = {"files": measure_files, "answers": measure_answers}


def main() -> int:
    """Measure and print; return the exit status."""
    arguments = parsed()
    torch.set_num_threads(1)
    document: dict[str, Any] = {"model": arguments.model.name, "temperature": arguments.temperature}
    tables = []
    for part in arguments.parts:
        rows, n_differing = PARTS[part](arguments)
        tables.append(table({key: key for key in rows[0]}, rows))
        print(f"{tables[-1]}\n\n{n_differing} texts differ\n", flush=True)
        document[part] = {"tokens_per_forward": rows, "texts_that_differ": n_differing}
    failed = any(document[part]["texts_that_differ"] for part in arguments.parts)
    return BenchmarkReport(document, "\n\n".join(tables), failed).publish(arguments.out)


if __name__ == "__main__":
    sys.exit(main())
