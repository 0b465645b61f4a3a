"""Flags of ``spectra train``, and their checks; loads nothing heavy."""

from __future__ import annotations

import argparse
from pathlib import Path

from app.config.serve import ServeConfig
from app.inputs.prompts import Question, read_questions
from app.offline.flags import add_max_tokens, add_model, check_least, checked_config
from engine.errors import ConfigError
from engine.scheduling.drafting import AUTOREGRESSIVE

METHODS = ("medusa", "eagle", "parallelspec-medusa", "parallelspec-eagle", "p-eagle", "dflash")
TEMPERATURE, MINUTES, LONGEST = 0.8, 25.0, 256


def add_texts(parser: argparse.ArgumentParser) -> None:
    """Flags that say what is trained on."""
    texts = parser.add_argument_group("texts (at least one source)")
    texts.add_argument("--prompts", type=Path, nargs="+", default=[], metavar="F.jsonl", help="the target answers them")
    texts.add_argument("--answers", type=Path, nargs="+", default=[], metavar="F.jsonl", help="answers that exist")
    texts.add_argument("--texts", type=Path, nargs="+", default=[], metavar="F", help="plain text: files or folders")
    texts.add_argument(
        "--measured-on",
        type=Path,
        nargs="+",
        default=[],
        metavar="F.jsonl",
        help="answers of the target of which the held-out ones are measured on, and none is trained on",
    )
    texts.add_argument("--limit", type=int, metavar="K", help="only the first K prompts of each file")
    texts.add_argument("--samples", type=int, default=1, metavar="N", help="answers to every prompt (default: 1)")
    texts.add_argument("--raw", action="store_true", help="prompts without a chat template, first turns only")
    add_max_tokens(texts, LONGEST, "per answer")
    texts.add_argument(
        "--temperature",
        type=float,
        default=TEMPERATURE,
        metavar="T",
        help=f"of one half of the answers, and of the measure; the other half is greedy (default: {TEMPERATURE})",
    )
    texts.add_argument("--answer-method", default=AUTOREGRESSIVE, metavar="M", help="speculation while answering")
    texts.add_argument("--max-nodes", type=int, default=8, metavar="N", help="of that speculation, per step (8)")
    texts.add_argument("--max-length", type=int, default=LONGEST, metavar="L", help=f"tokens of a text ({LONGEST})")
    texts.add_argument(
        "--held-out", type=float, default=0.1, metavar="X", help="share of questions that are held out (default: 0.1)"
    )


def add_drafter(parser: argparse.ArgumentParser) -> None:
    """Flags that say what is trained; without them it is as published."""
    shape = parser.add_argument_group("drafter (default: as published, in the target's sizes)")
    shape.add_argument("--generation", type=int, choices=(1, 3), help="eagle: of its authors' versions (default: 3)")
    shape.add_argument("--drafts", type=int, metavar="K", help="tokens drafted in one forward, or heads")
    shape.add_argument("--layers", type=int, metavar="N", help="transformer layers, or blocks of a head")
    shape.add_argument(
        "--taps", type=_layers, metavar="L,L..", help="target layers that are read (--taps=-1: embedding)"
    )
    shape.add_argument("--draft-vocab", type=int, metavar="N", help="only the N tokens that answers have most")
    shape.add_argument("--mask-token", type=int, metavar="ID", help="p-eagle, dflash: whose embedding masks have")
    shape.add_argument("--mask-state", choices=("learned", "zero"), help="parallelspec: of mask rows (learned)")
    shape.add_argument("--no-states", action="store_true", help="parallelspec-medusa: reads tokens alone")
    shape.add_argument("--causal-block", action="store_true", help="dflash: slots see earlier ones (JetSpec)")
    shape.add_argument("--sample-from-anchor", action="store_true", help="dflash: slot 0 drafts as well (DSpark)")
    shape.add_argument("--markov-rank", type=int, metavar="R", help="dflash: of the previous token's head (DSpark)")
    shape.add_argument("--markov-head", choices=("vanilla", "gated", "rnn"), help="its kind (vanilla)")
    shape.add_argument("--confidence", action="store_true", help="dflash: a head that foretells acceptance (DSpark)")


def add_training(parser: argparse.ArgumentParser) -> None:
    """Flags that say how it is trained."""
    loss = parser.add_argument_group("loss (default: as published)")
    loss.add_argument("--labels", choices=("soft", "hard"), help="the target's distribution, or the text's tokens")
    loss.add_argument("--ce-weight", type=float, metavar="X", help="of cross-entropy")
    loss.add_argument("--regression", type=float, metavar="X", help="eagle 1, parallelspec-eagle: of states' smooth L1")
    loss.add_argument("--distance", type=float, metavar="X", help="of the L1 distance of distributions")
    loss.add_argument("--depth-decay", type=float, metavar="X", help="each depth counts so much of the one before")
    loss.add_argument("--noise", type=float, metavar="X", help="on states that are read")
    loss.add_argument("--train-depths", type=int, metavar="N", help="eagle: steps that are fed their own outputs")
    run = parser.add_argument_group("training")
    budget = run.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, metavar="M", help=f"of training in all (default: {MINUTES:g})")
    budget.add_argument("--steps", type=int, metavar="N", help="of training in all, instead")
    run.add_argument("--batch", type=int, default=4, metavar="B", help="texts per step (default: 4)")
    run.add_argument("--roots", type=int, default=64, metavar="N", help="places of a text that draft (default: 64)")
    run.add_argument("--rate", type=float, default=2e-3, metavar="X", help="of learning, at its highest (0.002)")
    run.add_argument("--weight-decay", type=float, default=0.0, metavar="X", help="(default: 0)")
    run.add_argument("--seed", type=int, default=0, metavar="S", help="of everything (default: 0)")
    run.add_argument("--checkpoint-every", type=float, default=60.0, metavar="SECONDS", help="(default: 60)")
    run.add_argument("--measured", type=int, default=128, metavar="N", help="held-out texts of a kind (default: 128)")
    run.add_argument("--work", type=Path, metavar="DIR", help="answers and checkpoint (default: OUT/work)")
    run.add_argument("--restart", action="store_true", help="forget the checkpoint; answers are kept")
    add_model(parser, "--target", batch_size=32)
    parser.set_defaults(top_p=1.0, top_k=0, verification="coupled")


def check(arguments: argparse.Namespace) -> tuple[ServeConfig, list[Question]]:
    """Return the target's configuration and the questions to answer, of all files. Sets the default budget.

    Raises:
        SpectraError: a flag's value is wrong, or a file of prompts cannot be read; the message names it.
    """
    if arguments.minutes is None and arguments.steps is None:
        arguments.minutes = MINUTES
    config = checked_config(arguments, arguments.temperature, arguments.answer_method)
    least = {"samples": 1, "max_length": 8, "train_depths": 1, "steps": 1, "batch": 1, "roots": 1, "measured": 1}
    check_least(arguments, least)
    if not arguments.prompts and not arguments.answers and not arguments.texts:
        raise ConfigError("there is nothing to train on: --prompts, --answers or --texts is needed")
    for name in ("minutes", "rate", "held_out"):
        value = getattr(arguments, name)
        most = 1 if name == "held_out" else float("inf")
        if value is not None and not 0 < value < most:
            raise ConfigError(f"--{name.replace('_', '-')} is {value}; it must be above 0 and below {most:g}")
    for name in ("ce_weight", "regression", "distance", "depth_decay", "noise", "weight_decay", "checkpoint_every"):
        value = getattr(arguments, name)
        if value is not None and not 0 <= value < float("inf"):
            raise ConfigError(f"--{name.replace('_', '-')} is {value}; it must be at least 0")
    if arguments.train_depths is not None and arguments.method != "eagle":
        raise ConfigError(f"--train-depths is given, but {arguments.method} trains all its --drafts; it is for eagle")
    for flag, paths in _files(arguments).items():
        for path in paths:
            if not path.exists():
                raise ConfigError(f"{flag} {path} does not exist")
    return config, [question for path in arguments.prompts for question in read_questions(path, arguments.limit)]


def _files(arguments: argparse.Namespace) -> dict[str, list[Path]]:
    return {
        "--answers": arguments.answers,
        "--texts": arguments.texts,
        "--measured-on": arguments.measured_on,
    }


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(layer) for layer in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of layers, such as 1,3,4") from None
