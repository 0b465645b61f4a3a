"""``spectra corpus build``: builds a snapshot of the texts that the target finds likely."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from app.corpus.settings import COVER, CPU_BATCH, GPU_BATCH, LIKELY, PIECE, SHORTEST, check_build
from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.devices import AUTO, device_named
from app.inputs.stores import DEFAULT_NAMESPACE
from app.reporting.report import as_line

DESCRIPTION = """\
Build a snapshot of texts for retrieval (methods spectra, spectra-retrieval and rest). The model scores each text; the
snapshot keeps the texts that cover most of what likely texts have in common, indexed for prefix search.

--input takes any mixture of:
  F.jsonl    one document per line: {"messages": [..]}, {"prompt": .., "answer": ..}, {"question": .., "answer": ..} or
             {"text": ..}; conversations are written by the model's chat template
  F          any other file is one text
  FOLDER     all files below it, such as source code; hidden files and files that are not UTF-8 are skipped

Documents longer than --piece-tokens are cut, after the end of a line if possible; each piece is scored and kept on its
own. Pieces shorter than --min-tokens and exact repetitions are dropped.

An interrupted or killed run continues when the same command is given again, and scores no text twice. Scores stay in
--work until the snapshot is written. If you name that folder they stay longer, so that another build of the same texts
with another --keep takes seconds.

DIR gets the snapshot. DIR.report gets report.json, perplexity.png and kept.jsonl (examples), which show what was kept
and why. The last line of stdout is one JSON document.
"""


def add(actions: Any) -> None:
    parser = actions.add_parser("build", help="score texts, choose some, and write a snapshot")
    parser.description = DESCRIPTION
    says = "directory, GGUF file or hub id of the target (default: %(default)s)"
    parser.add_argument("--model", default=DEFAULT_MODEL, help=says)
    files: dict[str, Any] = {"dest": "inputs", "nargs": "+", "action": "extend", "required": True}
    parser.add_argument("--input", type=_path, metavar="F", help="files and folders of texts", **files)
    parser.add_argument("--out", type=_path, required=True, metavar="DIR", help="new folder for the snapshot")
    says = "keep texts and scores here (default: DIR.work, removed at the end)"
    parser.add_argument("--work", type=_path, metavar="DIR", help=says)
    for flag, metavar, says in (
        ("--keep", "N", "texts to keep"),
        ("--keep-tokens", "T", "tokens to keep; with --keep, the limit that is reached first"),
        ("--piece-tokens", "T", f"cut longer documents (default: {PIECE}, or what the model can read if that is less)"),
        ("--threads", "N", "intra-op threads (default: one per core)"),
        ("--batch-tokens", "T", f"tokens scored together (default: {CPU_BATCH} on a CPU, {GPU_BATCH} on a GPU)"),
    ):
        parser.add_argument(flag, type=int, metavar=metavar, help=says)
    for flag, default, metavar, says in (
        ("--min-tokens", SHORTEST, "T", "drop shorter texts"),
        ("--seed", 0, "S", "seed of the random sample of --unrefined"),
    ):
        parser.add_argument(flag, type=int, default=default, metavar=metavar, help=f"{says} (default: {default})")
    for flag, says in (
        ("--force", "replace the snapshot in --out"),
        ("--unrefined", "do not score; keep a random sample, for rest or to compare"),
        ("--per-input", "keep a share of each --input, not the best of all: kinds of text differ in perplexity"),
    ):
        parser.add_argument(flag, action="store_true", help=says)
    says = "cover: texts that cover most of what all have in common (default); likely: the likeliest, as in the paper"
    parser.add_argument("--select", choices=(COVER, LIKELY), help=says)
    parser.add_argument("--dtype", help="float32, bfloat16 or float16 (default: float32 on a CPU)")
    says = "cpu, cuda, or auto: cuda if torch sees a GPU; cuda:0,cuda:1 spreads the layers over GPUs (default: auto)"
    parser.add_argument("--device", type=device_named, default=AUTO, help=says)
    parser.add_argument("--redis", metavar="URL", help="publish the snapshot to this store and make it current")
    parser.add_argument("--namespace", metavar="NS", help=f"namespace of the store (default: {DEFAULT_NAMESPACE})")
    parser.set_defaults(run=run)


def _path(text: str) -> Path:
    return Path(text).expanduser()


def run(arguments: argparse.Namespace) -> int:
    check_build(arguments)

    from app.corpus.build import SnapshotBuild  # torch takes seconds to load; a wrong flag is reported at once

    print(as_line(SnapshotBuild(arguments).run()), flush=True)
    return 0
