"""``spectra train``: trains a drafter for a target, from prompts to a checkpoint with its acceptance."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import get_args

from app.config.serve import ServeConfig
from app.inputs.prompts import Question, read_questions
from app.offline.flags import add_max_tokens, add_model, check_least, checked_config
from app.reporting.report import as_line
from app.training.options import add_options, check_options, read_options
from engine.drafter.spec import Method
from engine.errors import ConfigError
from engine.scheduling.drafting import AUTOREGRESSIVE

DESCRIPTION = """\
Train a drafter for a target. The target answers the prompts, or questions that it writes itself, half of them greedily.
The drafter learns from what the target's layers compute on these answers. A tenth of the questions is held out, to
measure the acceptance of drafts by depth. --out gets the drafter in its method's public layout (in our own layout with
--draft-vocab), a card (README.md) and training.json.

The command can be interrupted at any time; the same command (without --restart) continues where it stopped. It prints a
table, and one JSON document as the last line.

  spectra train --target DIR --method eagle --generation 1 --own-questions 3000 --draft-vocab 8192 --out DIR
"""
MINUTES, LONGEST = 25.0, 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--method", required=True, choices=get_args(Method), help="method of the drafter")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the drafter")
    add_model(parser, "--target", batch_size=32)
    _add_texts(parser.add_argument_group("texts (--prompts, --own-questions or --answers is required)"))
    add_options(parser.add_argument_group("shape of the drafter (default: as published, in the target's sizes)"))
    loss = parser.add_argument_group("loss (default: as published)")
    loss.add_argument("--labels", choices=("soft", "hard"), help="the target's distribution, or the text's tokens")
    loss.add_argument("--ce-weight", type=float, metavar="X", help="weight of cross-entropy")
    loss.add_argument("--depth-decay", type=float, metavar="X", help="weight of a depth relative to the previous one")
    loss.add_argument("--train-depths", type=int, metavar="N", help="eagle: steps on its own outputs")
    _add_training(parser.add_argument_group("training"))
    parser.set_defaults(top_p=1.0, top_k=0, verification="coupled")  # read by functions of all offline commands


def _add_value(group: argparse._ArgumentGroup, flag: str, default: float | str, metavar: str, says: str) -> None:
    """Add a flag with a default value, which its help shows."""
    says = f"{says} (default: %(default)s)"
    group.add_argument(flag, type=type(default), default=default, metavar=metavar, help=says)


def _add_texts(group: argparse._ArgumentGroup) -> None:
    for flag, metavar, says in (
        ("--prompts", "F.jsonl", "questions that the target answers"),
        ("--answers", "F.jsonl", "existing answers"),
        ("--measured-on", "F.jsonl", "measure acceptance only on held-out answers from these files"),
    ):
        group.add_argument(flag, type=Path, nargs="+", default=[], metavar=metavar, help=says)
    group.add_argument("--limit", type=int, metavar="K", help="read only the first K prompts of each file")
    group.add_argument("--raw", action="store_true", help="no chat template; only the first turn of a conversation")
    add_max_tokens(group, LONGEST, "per answer")
    _add_value(group, "--own-questions", 0, "N", "questions that the target itself writes (needs a chat template)")
    _add_value(group, "--samples", 1, "N", "answers to each prompt")
    _add_value(group, "--temperature", 0.8, "T", "sampling temperature of half the answers; the others are greedy")
    _add_value(group, "--max-length", LONGEST, "L", "most tokens of a text")
    _add_value(group, "--held-out", 0.1, "X", "share of questions to hold out")


def _add_training(group: argparse._ArgumentGroup) -> None:
    budget = group.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, metavar="M", help=f"total time of training (default: {MINUTES:g})")
    budget.add_argument("--steps", type=int, metavar="N", help="total steps of training, instead of --minutes")
    _add_value(group, "--batch", 4, "B", "texts per step")
    _add_value(group, "--roots", 64, "N", "positions of a text to draft from")
    _add_value(group, "--rate", 2e-3, "X", "highest learning rate")
    _add_value(group, "--seed", 0, "S", "seed of all random numbers")
    _add_value(group, "--checkpoint-every", 60.0, "SECONDS", "time between checkpoints")
    _add_value(group, "--measured", 128, "N", "held-out texts to measure, of greedy and of sampled answers each")
    says = "questions, answers and hidden states, which drafters of a target can share (default: work in --out)"
    group.add_argument("--work", type=Path, metavar="DIR", help=says)
    group.add_argument("--restart", action="store_true", help="start without the checkpoint; answers are kept")


def run(arguments: argparse.Namespace) -> int:
    config, questions = check(arguments)

    # PyTorch takes seconds to load; a wrong flag is reported at once.
    from app.training.report import table
    from app.training.train import train

    arguments.work = arguments.work or arguments.out / "work"
    for flag, folder in (("--out", arguments.out), ("--work", arguments.work)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{flag} {folder} cannot be created: {error.strerror}") from error
    try:
        document = train(arguments, config, read_options(arguments), questions)
    except KeyboardInterrupt:
        print("spectra: stopped; the same command (without --restart) continues", file=sys.stderr)
        raise
    print(table(document))
    print(as_line(document), flush=True)
    return 0


def check(arguments: argparse.Namespace) -> tuple[ServeConfig, list[Question]]:
    """Return the target's configuration and the questions of all prompt files; set the default budget.

    Raises SpectraError, which names the flag, if a value is wrong or a file cannot be read.
    """
    if arguments.minutes is None and arguments.steps is None:
        arguments.minutes = MINUTES
    config = checked_config(arguments, arguments.temperature, AUTOREGRESSIVE)
    check_options(arguments.method, read_options(arguments))
    check_least(arguments, dict.fromkeys(("samples", "train_depths", "steps", "batch", "roots", "measured"), 1))
    zeros = dict.fromkeys(("own_questions", "ce_weight", "depth_decay", "checkpoint_every"), 0)
    check_least(arguments, zeros | {"max_length": 8})
    if not 0 <= arguments.seed < 2**32:
        raise ConfigError(f"--seed is {arguments.seed}; it must be 0 to {2**32 - 1}")
    if arguments.own_questions and not arguments.temperature:
        why = "but --temperature is 0, at which all questions are equal; use a higher temperature"
        raise ConfigError(f"--own-questions is {arguments.own_questions}, {why}")
    if not any((arguments.prompts, arguments.own_questions, arguments.answers)):
        raise ConfigError("there is nothing to train on; give --prompts, --own-questions or --answers")
    for name, most in {"minutes": math.inf, "rate": math.inf, "held_out": 1}.items():
        value = getattr(arguments, name)
        if value is not None and not 0 < value < most:
            raise ConfigError(f"--{name.replace('_', '-')} is {value}; it must be above 0 and below {most}")
    if arguments.train_depths is not None and arguments.method != "eagle":
        raise ConfigError(f"--train-depths does not apply to --method {arguments.method}; it is for eagle")
    for flag in ("answers", "measured_on"):
        for path in getattr(arguments, flag):
            if not path.exists():
                raise ConfigError(f"--{flag.replace('_', '-')} {path} does not exist")
    return config, [question for path in arguments.prompts for question in read_questions(path, arguments.limit)]
