"""``spectra generate``: complete prompts offline, without a server."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from app.inputs.prompts import Question, read_questions, read_text
from app.offline.flags import add_model, add_sampling, add_speculation, checked_config
from app.reporting.colours import coloured
from engine.errors import ConfigError
from speculators.methods import reads_prediction

if TYPE_CHECKING:  # torch loads when a command runs, not when --help prints
    from app.offline.generator import GeneratedAnswer

DESCRIPTION = """\
Complete a prompt, or every line of a JSONL file ({"prompt": ..}, {"turns": [..]} or {"messages": [..]}), without a
server. --json prints one JSON object per turn: text, token ids, and statistics of speculation.
The text does not depend on --method, because speculation is lossless.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="one prompt")
    source.add_argument("--prompts", type=Path, metavar="F.jsonl", help="prompts, one JSON object per line")
    says = "text that answers probably resemble (UTF-8); methods auto and prediction draft from it"
    parser.add_argument("--prediction", dest="prediction_file", type=Path, metavar="FILE", help=says)
    parser.add_argument("--limit", type=int, metavar="K", help="only the first K prompts")
    parser.add_argument("--raw", action="store_true", help="no chat template, first turns only")
    add_model(parser)
    add_sampling(parser)
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default: 0)")
    add_speculation(parser)
    parser.add_argument("--method", default="auto", help="speculation method (default: auto)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object per turn instead of text")
    form.add_argument("--color", action="store_true", help="colour the text by the source that drafted it")


def run(arguments: argparse.Namespace) -> int:
    config = checked_config(arguments, arguments.temperature, arguments.method)
    if arguments.prompt is None:
        asked = read_questions(arguments.prompts, arguments.limit)
    else:
        asked = [Question([arguments.prompt])]
    if arguments.prediction_file is not None:
        predicted = _prediction(arguments.prediction_file, arguments.method)
        asked = [msgspec.structs.replace(question, prediction=predicted) for question in asked]

    from app.offline.setup import generator  # torch takes seconds to load, a wrong flag none
    from app.reporting.report import bar

    made = generator(arguments, config, arguments.method, trace=arguments.color)
    turns = [1 if arguments.raw else len(question.turns) for question in asked]
    with bar(None, sum(turns), "turn", disable=sum(turns) < 2) as shown:
        for answer in in_order(made.answers(asked, arguments.batch_size), turns, shown.update):
            print(json.dumps(answer.as_json(), ensure_ascii=False) if arguments.json else _plain(answer), flush=True)
    return 0


def _prediction(path: Path, method: str) -> str:
    """Return the text of the file; raise ConfigError if it cannot be read, or the method does not use a prediction."""
    if not reads_prediction(method) and method.strip() != "autoregressive":
        raise ConfigError(
            f"--prediction is given, but --method {method} does not draft from it; use auto, prediction or "
            f"prediction+{method}"
        )
    return read_text(path, "--prediction")


def in_order(
    answers: Iterable[GeneratedAnswer], turns: Sequence[int], on_answer: Callable[[], object]
) -> Iterator[GeneratedAnswer]:
    """Yield answers in the order of questions and turns.

    Args:
        answers: in any order.
        turns: number of turns of each question.
        on_answer: called for every answer as it comes.
    """
    held: dict[tuple[int, int], GeneratedAnswer] = {}
    order = [(index, turn) for index, n in enumerate(turns) for turn in range(n)][::-1]
    for answer in answers:
        on_answer()
        held[answer.index, answer.turn] = answer
        while order and order[-1] in held:
            yield held.pop(order.pop())


def _plain(answer: GeneratedAnswer) -> str:
    figures = answer.as_json()
    text = coloured(answer.parts) if answer.parts else answer.text
    return (
        f"{text}\n[{len(answer.token_ids)} tokens in {figures['target_forwards']} forwards, "
        f"{figures['tokens_per_forward']:.2f} tokens per forward, {figures['seconds']:.2f} s]"
    )
