"""``spectra corpus build``: texts become a snapshot of those that the target finds likely."""

from __future__ import annotations

import argparse
import json
from typing import Any

from app.corpus.settings import CPU_BATCH, GPU_BATCH, PIECE, SELECTIONS, SHORTEST
from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.devices import AUTO, device_named
from app.inputs.stores import DEFAULT_NAMESPACE

DESCRIPTION = """\
Turn texts into a snapshot for retrieval (--method spectra, spectra-retrieval, rest): score each text under the model,
keep those that cover most of what likely texts have in common, and index them for prefix search.

--input takes, in any mixture:
  F.jsonl    a document per line: {"messages": [..]}, {"prompt": .., "answer": ..}, {"question": .., "answer": ..} or
             {"text": ..}; conversations are indexed as the model's chat template writes them
  F          any other file is one text
  FOLDER     all of these below it, such as a tree of code; hidden files and what is not UTF-8 are passed over

Documents longer than --piece-tokens are cut, at the end of a line where there is one; pieces are scored and kept on
their own. Pieces shorter than --min-tokens and exact repetitions are dropped.

A run that was interrupted, killed even, goes on where it stopped when the same command is given again: it scores
no text twice. Scores are kept in --work until the snapshot is written, and longer if you name the folder, so that the
same texts can be built again with another --keep in seconds.

DIR holds the snapshot and DIR.report what was kept and why: report.json, perplexity.png and kept.jsonl (examples). The
last line of stdout is one JSON document.
"""


def add(actions: Any) -> None:
    """Add the action."""
    parser = actions.add_parser("build", help="score texts, choose among them, write a snapshot")
    parser.description = DESCRIPTION
    _add_texts(parser)
    _add_choice(parser)
    _add_scoring(parser)
    parser.add_argument("--redis", metavar="URL", help="publish the snapshot to this store and make it the current one")
    parser.add_argument("--namespace", metavar="NS", help=f"of the store (default: {DEFAULT_NAMESPACE})")
    parser.set_defaults(run=run)


def _add_texts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="directory, GGUF file or hub id of the target (default: %(default)s)"
    )
    parser.add_argument(
        "--input", nargs="+", action="extend", required=True, metavar="F", help="files and folders of texts"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="the snapshot's folder; it must not exist")
    parser.add_argument("--force", action="store_true", help="replace the snapshot in --out")
    parser.add_argument(
        "--piece-tokens",
        type=int,
        metavar="T",
        help=f"cut longer documents (default: {PIECE}, or what the model reads)",
    )
    parser.add_argument(
        "--min-tokens", type=int, default=SHORTEST, metavar="T", help=f"drop shorter texts (default: {SHORTEST})"
    )
    parser.add_argument(
        "--work", metavar="DIR", help="texts and scores, for going on and building again (default: DIR.work, removed)"
    )


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", type=int, metavar="N", help="texts to keep")
    parser.add_argument(
        "--keep-tokens", type=int, metavar="T", help="tokens to keep, instead of --keep or as a limit beside it"
    )
    parser.add_argument(
        "--unrefined", action="store_true", help="score nothing and keep a random sample: for rest, and to compare"
    )
    parser.add_argument(
        "--select",
        choices=SELECTIONS,
        help="keep the texts that cover most of what all have in common, likely texts before others (default), or the "
        "likeliest, as SPECTRA's paper does",
    )
    parser.add_argument(
        "--per-input",
        action="store_true",
        help="keep of every --input its share, instead of the likeliest of all: kinds of text differ in perplexity",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of that sample (default: 0)")


def _add_scoring(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", help="float32, bfloat16 or float16 (default: float32 on a CPU)")
    parser.add_argument(
        "--device",
        type=device_named,
        default=AUTO,
        help="cpu, cuda, or auto: cuda if torch sees a GPU; cuda:0,cuda:1 spreads the layers of a model that one GPU "
        "does not hold (default: auto)",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="intra-op threads (default: one per core)")
    parser.add_argument(
        "--batch-tokens",
        type=int,
        metavar="T",
        help=f"tokens scored together (default: {CPU_BATCH} on a CPU, {GPU_BATCH} on a GPU)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Build and print."""
    from app.corpus.settings import settings_from

    settings = settings_from(arguments)

    from app.corpus.build import build  # torch takes a second to load, a wrong flag none

    print(json.dumps(build(settings), ensure_ascii=False), flush=True)
    return 0
