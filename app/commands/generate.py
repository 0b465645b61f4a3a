"""``spectra generate``: complete prompts offline, without a server."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.speculation.flags import add_speculation

if TYPE_CHECKING:  # torch loads when a command runs, not when --help prints
    from app.offline.generator import Answer

DESCRIPTION = """\
Complete a prompt, or every question of a JSONL file ({"question_id", "category", "turns": [..]} per line), on this
machine, without a server. With --json, one JSON object per turn on stdout: text, token ids, and what speculation did.
The text does not depend on --method: speculation is lossless.
"""


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "generate",
        help="complete prompts offline",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_input(parser)
    add_model(parser)
    add_sampling(parser)
    add_speculation(parser)
    parser.add_argument("--method", default="auto", help="speculation, e.g. pld (default: auto)")
    parser.add_argument("--json", action="store_true", help="one JSON object per turn instead of text")
    parser.set_defaults(run=run)


def add_input(parser: argparse.ArgumentParser) -> None:
    """Flags that say what to complete."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="one prompt")
    source.add_argument("--prompts", type=Path, metavar="F.jsonl", help="questions, one JSON object per line")
    parser.add_argument("--limit", type=int, metavar="K", help="only the first K questions")
    parser.add_argument("--raw", action="store_true", help="no chat template, first turns only")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Flags that say what runs, and how."""
    parser.add_argument("--model", default="demo", help="directory or hub id (default: the demo model)")
    parser.add_argument("--dtype", help="float32, bfloat16 or float16 (default: float32 on a CPU)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--stages", type=int, default=1, metavar="P", help="pipeline stages, in this process")
    parser.add_argument(
        "--layer-split", default="auto", metavar="S", help="auto, even, measured, or counts: 22,20,20,18"
    )
    parser.add_argument("--stage-memory-gib", metavar="X[,X..]", help="GiB of weights and KV a stage may take")
    parser.add_argument("--quantization", choices=["int8"], help="int8 matrices in the layers (extra int8)")
    parser.add_argument("--batch-size", type=int, default=1, metavar="B", help="questions side by side (default: 1)")
    parser.add_argument("--kv-gib", type=float, default=0.5, metavar="X", help="KV cache, GiB (default: 0.5)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="intra-op threads (default: 1)")


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Flags of the request."""
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="per turn (default: 128)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default: 0)")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="nucleus (default: 1)")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="0: no limit (default: 0)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the sampling noise (default: 0)")
    parser.add_argument(
        "--verification", choices=("coupled", "rejection"), default="coupled", help="lossless both (default: coupled)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Generate and print."""
    import torch
    from tqdm import tqdm

    from app.offline.setup import check_flags, generator, questions

    check_flags(arguments)
    torch.set_num_threads(arguments.threads)
    asked = questions(arguments)
    made = generator(arguments, arguments.method)
    turns = [1 if arguments.raw else len(question.turns) for question in asked]
    bar = tqdm(total=sum(turns), unit="turn", file=sys.stderr, disable=sum(turns) < 2)
    for answer in in_order(_counted(made.answers(asked, arguments.batch_size), bar), turns):
        print(json.dumps(answer.as_json(), ensure_ascii=False) if arguments.json else _plain(answer), flush=True)
    bar.close()
    return 0


def _counted(answers: Iterable[Answer], bar: Any) -> Iterator[Answer]:
    for answer in answers:
        bar.update()
        yield answer


def in_order(answers: Iterable[Answer], turns: Sequence[int]) -> Iterator[Answer]:
    """Answers by question and turn, whatever order a batch finished them in; ``turns`` counts each question's."""
    held: dict[tuple[int, int], Answer] = {}
    expected = iter([(index, turn) for index, n in enumerate(turns) for turn in range(n)])
    wanted = next(expected, None)
    for answer in answers:
        held[answer.index, answer.turn] = answer
        while wanted in held:
            yield held.pop(wanted)
            wanted = next(expected, None)


def _plain(answer: Answer) -> str:
    figures = answer.as_json()
    return (
        f"{answer.text}\n[{len(answer.token_ids)} tokens in {figures['target_forwards']} forwards, "
        f"{figures['tokens_per_forward']:.2f} tokens per forward, {figures['seconds']:.2f} s]"
    )
