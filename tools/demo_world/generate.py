"""Write conversations of the small world as JSON lines, or its questions in the form of prompt files.

  python -m tools.demo_world.generate [-n 1000] [--first 0] [--seed 0] > corpus.jsonl
  python -m tools.demo_world.generate --split fillers -n 20 > questions.jsonl
  python -m tools.demo_world.generate --split fillers -n 12 --prompts DIR

Without --split: the conversations that training with this seed sees, from number --first on. With it: n examples of
every task whose fillers or wordings training does not see. --prompts writes those without tools to
DIR/spec_bench.jsonl, with their tasks as categories, which is how `python -m benchmarks.acceptance --prompts DIR
--categories code-edit,list` reads them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from tools.demo_world.draw import HELD_OUT
from tools.demo_world.example import Example
from tools.demo_world.mix import conversations, questions


def prompt_lines(examples: Iterable[Example]) -> list[str]:
    """Single questions without tools, as lines of a prompt file."""
    plain = [e for e in examples if len(e.messages) == 2 and not e.tools]
    return [
        json.dumps({"question_id": i, "category": e.task.replace(" ", "-"), "turns": [e.messages[0]["content"]]})
        for i, e in enumerate(plain)
    ]


def main(argv: list[str] | None = None) -> None:
    """Write."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo_world.generate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-n", type=int, default=1000, help="conversations, or examples of every task (default: 1000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first conversation (default: 0)")
    parser.add_argument("--seed", type=int, default=0, help="of the conversations (default: 0)")
    parser.add_argument("--split", choices=HELD_OUT, help="what training must not have seen")
    parser.add_argument("--prompts", type=Path, help="folder for a prompt file (created); needs --split")
    args = parser.parse_args(argv)
    if args.prompts is not None and args.split is None:
        parser.error("--prompts needs --split")
    found = questions(args.split, args.n) if args.split else islice(conversations(args.seed, args.first), args.n)
    if args.prompts is not None:
        args.prompts.mkdir(parents=True, exist_ok=True)
        (args.prompts / "spec_bench.jsonl").write_text("\n".join(prompt_lines(found)) + "\n", encoding="utf-8")
        return
    for example in found:
        sys.stdout.write(json.dumps(asdict(example), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
