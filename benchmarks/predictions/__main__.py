"""What predicted outputs save, in tokens per target forward.

Two parts. *Files*: an agent writes a file anew that was edited by 1, 10 or 30 % of its words (clustered and scattered),
had symbols renamed or a function inserted, or a JSON document with other values; the old file is the prediction.
Answers are committed as they are recorded, as ``spectra bench --replay`` does it, without a model. Beside it what the
same methods do with the prediction pasted into the prompt. *Answers*: what the model itself writes, edited at the level
of tokens, is predicted; every text is compared with that of plain decoding, and a useless prediction is timed against
none. The last line of stdout is one JSON document; the exit status is 1 if a text differs.

    python -m benchmarks.predictions [--model DIR] [--prompts DIR] [--temperature 0.8] [--parts files,answers]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from app.inputs.prompts import BUILTIN, Question, encode_chat, encode_plain
from app.inputs.tokenizers import load_tokenizer
from app.reporting.report import as_line, write_lines
from app.speculation.heads import encoded, longest_prompt
from benchmarks.predictions.files import SHARES, edits
from benchmarks.predictions.runs import (
    PASTED,
    AnsweringModel,
    PredictionCase,
    PredictionFigures,
    predictions_of,
    replayed,
)
from benchmarks.support.prompt_sets import questions
from benchmarks.support.reporting import heading, row
from engine.sampling.params import SamplingParams
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from engine.target_model.step_timing import measure
from speculators.method import SpeculatorOptions

REPLAYED = ("prediction", "suffix", "prediction+suffix", f"pld{PASTED}", f"suffix{PASTED}")
JOINED = "prediction+suffix+token-recycling"
MODELS = ("suffix+token-recycling", "prediction", JOINED, "auto")


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=model_path, default=DEFAULT_MODEL, help="(default: %(default)s)")
    parser.add_argument("--prompts", type=Path, help="folder with spec_bench, gsm8k and humaneval (default: built-in)")
    parser.add_argument("--parts", default="files,answers", help="comma-separated (default: files,answers)")
    parser.add_argument("--files", type=int, default=4, help="files of each kind, 2 to 8 (default: 4)")
    parser.add_argument("--limit", type=int, default=8, help="built-in prompts, 2 to 8 (default: 8)")
    parser.add_argument("--per-kind", type=int, default=2, help="prompts of each kind in --prompts (default: 2)")
    parser.add_argument("--max-tokens", type=int, default=256, help="of an answer (default: 256)")
    parser.add_argument("--max-nodes", type=int, default=64, help="of a step (default: 64)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: greedy (default)")
    parser.add_argument("--seed", type=int, default=0, help="of edits and of sampling (default: 0)")
    parser.add_argument("--repeats", type=int, default=2, help="rounds that time a useless prediction; 0: none")
    parser.add_argument("--write", type=Path, metavar="F.jsonl", help="write the files for 'spectra bench --replay'")
    arguments = parser.parse_args()
    for flag in ("files", "limit"):
        if not 2 <= getattr(arguments, flag) <= 8:
            parser.error(f"--{flag} is {getattr(arguments, flag)}; it must be 2 to 8")
    return arguments


def shown(found: Mapping[str, Mapping[str, PredictionFigures]]) -> dict[str, Any]:
    """Print a table, kinds down and methods across; returns the figures."""
    kinds = list(next(iter(found.values())))
    print(heading(("tokens per forward", *found)))
    for kind in kinds:
        print(row((kind, *(f"{found[method][kind].tokens_per_forward:.2f}" for method in found))))
    differing = sum(one.n - one.identical for by_kind in found.values() for one in by_kind.values())
    print(f"\n{differing} of {sum(one.n for by_kind in found.values() for one in by_kind.values())} texts differ\n")
    figures = {
        method: {kind: round(one.tokens_per_forward, 3) for kind, one in by_kind.items()}
        for method, by_kind in found.items()
    }
    return {"tokens_per_forward": figures, "texts_that_differ": differing}


def of_files(arguments: argparse.Namespace) -> dict[str, Any]:
    """The first part."""
    tokenizer = load_tokenizer(arguments.model)
    every = edits(arguments.files, arguments.seed)
    if arguments.write is not None:
        lines = [
            {"prompt": one.request, "answer": one.answer, "prediction": one.prediction, "category": one.kind}
            for one in every
        ]
        write_lines(lines, arguments.write)
    cases = [
        PredictionCase(
            one.kind,
            encode_chat(tokenizer, [{"role": "user", "content": one.request}]),
            encode_plain(tokenizer, one.prediction),
            encode_plain(tokenizer, one.answer),
        )
        for one in every
    ]
    with tqdm(total=len(cases) * len(REPLAYED), unit="text", file=sys.stderr) as bar:
        return shown(replayed(cases, REPLAYED, arguments.max_nodes, len(tokenizer), bar.update))


def of_answers(arguments: argparse.Namespace) -> dict[str, Any]:
    """The second part."""
    target = LocalTarget.load(TargetOptions(str(arguments.model)), arguments.model)
    asked = {"built-in": [Question([text]) for text in BUILTIN[: arguments.limit]]}
    if arguments.prompts is not None:
        asked = questions(arguments.prompts, arguments.per_kind)
    longest = longest_prompt(target, arguments.max_tokens)
    prompts = [ids for some in asked.values() for ids in encoded(arguments.model, some, longest)]
    params = SamplingParams(
        max_tokens=arguments.max_tokens, temperature=arguments.temperature, seed=arguments.seed
    )  # no end of text: answers are as long as they may be
    free = AnsweringModel(target, SpeculatorOptions(), params, arguments.max_nodes)
    answers = [free.answer(free.engine(), prompt, "autoregressive", [])[0] for prompt in prompts]
    predictions = predictions_of(answers, SHARES, arguments.seed)
    with tqdm(total=len(prompts) * len(MODELS) * len(predictions), unit="text", file=sys.stderr) as bar:
        document = shown(free.measured(prompts, answers, MODELS, predictions, bar.update))
    if arguments.repeats:
        timed = AnsweringModel(target, SpeculatorOptions(step_costs=measure(target)), params, arguments.max_nodes)
        document["speed_when_useless"] = {
            method: round(
                timed.speed_when_useless(prompts, predictions["useless"], method, without, arguments.repeats), 3
            )
            for method, without in (("auto", "auto"), ("prediction", "autoregressive"))
        }
        print(f"a useless prediction, speed against none: {document['speed_when_useless']}\n")
    return document


def main() -> int:
    """Measure and print; returns the exit status."""
    arguments = parsed()
    torch.set_num_threads(1)
    parts = {"files": of_files, "answers": of_answers}
    document: dict[str, Any] = {"model": arguments.model.name, "temperature": arguments.temperature}
    document |= {name: parts[name](arguments) for name in arguments.parts.split(",")}
    print(as_line(document))
    return int(any(document[name]["texts_that_differ"] for name in arguments.parts.split(",")))


if __name__ == "__main__":
    sys.exit(main())
