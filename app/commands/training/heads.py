"""``spectra heads find``: finds the attention heads of a model that copy, for ``pld-plus-a``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from app.inputs.prompts import Question, read_questions
from app.offline.flags import add_max_tokens, add_model, check_least, checked_config
from app.reporting.report import bar, columns
from app.speculation.calibration_prompts import PROMPTS

if TYPE_CHECKING:  # torch loads when a command runs, not when --help prints
    from speculators.pld_plus.induction_heads import HeadsFile

DESCRIPTION = """\
Find the induction heads of a model: attention heads that look at the earlier occurrence of a token when the model
writes that token again. The best heads are written to --out, for 'spectra generate|bench|serve --heads'. Without
--prompts, built-in prompts are used: summaries, questions, edits, code.
"""
SHOWN = 10  # heads in the printed table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    find = actions.add_parser("find", help="find the heads that copy, and write the best to a file")
    find.description = DESCRIPTION
    add_model(find)
    find.add_argument("--prompts", type=Path, metavar="F.jsonl", help="prompts, one JSON object per line")
    find.add_argument("--limit", type=int, metavar="K", help="use only the first K prompts")
    add_max_tokens(find, 64, "per prompt")
    find.add_argument("--keep", type=int, metavar="K", help="heads to keep (default: 50, but at most a sixth of all)")
    find.add_argument("--out", type=Path, required=True, metavar="FILE", help="the heads file to write")
    find.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    config = checked_config(arguments, temperature=0.0)
    check_least(arguments, {"keep": 1})
    questions = [Question([text]) for text in PROMPTS[: arguments.limit]]
    if arguments.prompts is not None:
        questions = read_questions(arguments.prompts, arguments.limit)

    from app.inputs.models import model_path  # torch takes seconds to load; a wrong flag is reported at once
    from app.offline.setup import load_target
    from app.speculation.heads import encoded, find, longest_prompt
    from engine.model.identity import model_hash
    from speculators.pld_plus.induction_heads import write_heads

    path, size = model_path(config.model, config.revision), arguments.batch_size
    target = load_target(config)
    prompts = encoded(path, questions, longest_prompt(target, arguments.max_tokens))
    with bar(None, len(prompts), "prompt", disable=len(prompts) < 2) as shown:
        found = find(target, model_hash(path), prompts, arguments.keep, arguments.max_tokens, size, shown.update)
    write_heads(arguments.out, found)
    print(report(found))
    print(f"{len(found.heads)} heads: {arguments.out}")
    return 0


def report(found: HeadsFile) -> str:
    total = found.n_layers * found.n_heads
    hit = sum(hits > 0 for layer in found.hits for hits in layer)
    rows = [(str(one.layer), str(one.head), f"{one.rate:.3f}") for one in found.heads[:SHOWN]]
    lines = [
        f"{found.n_tokens} tokens counted; {hit} of {total} heads hit at least once",
        columns([("layer", "head", "hits per token"), *rows], left=()),
    ]
    if len(found.heads) > SHOWN:
        lines.append(f"... and {len(found.heads) - SHOWN} more, down to {found.heads[-1].rate:.3f}")
    return "\n".join(lines)
