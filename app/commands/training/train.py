"""``spectra train``: a drafter for a target, from prompts to a checkpoint with its figures."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from app.commands.training.train_flags import METHODS, add_drafter, add_texts, add_training, check
from app.reporting.report import as_line, check_writable

DESCRIPTION = """\
Train a drafter for a target. The target answers the prompts, half of them greedily; what its layers make of the answers
is captured batch by batch; a tenth of the questions is held out, and acceptance by depth is measured on it. --out gets
the drafter in its method's public layout, a card (README.md) and training.json.

Everything can be interrupted: the same command goes on where it stopped, in answering as in training. A table goes to
stdout, with one JSON document as the last line.

  spectra train --target DIR --method parallelspec-eagle --prompts F.jsonl --out DIR --minutes 25
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Make ``parser`` that of ``spectra train``."""
    parser.add_argument("--method", required=True, choices=METHODS, help="what is trained")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the drafter")
    add_texts(parser)
    add_drafter(parser)
    add_training(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train, or go on; print the table and the document."""
    config, questions = check(arguments)

    from app.training.running.architecture import (  # torch takes seconds to load, a wrong flag none
        ArchitectureOptions,
        check_asked,
    )
    from app.training.running.report import table
    from app.training.running.train import train

    asked = ArchitectureOptions(**{field.name: getattr(arguments, field.name) for field in fields(ArchitectureOptions)})
    check_asked(arguments.method, asked)
    if arguments.work is None:
        arguments.work = arguments.out / "work"
    for folder in (arguments.out, arguments.work):
        check_writable(folder, None)
    try:
        document = train(arguments, config, asked, questions)
    except KeyboardInterrupt:
        print(f"spectra: stopped; the same command goes on from what is in {arguments.work}", file=sys.stderr)
        raise
    print(table(document))
    print(as_line(document), flush=True)
    return 0
