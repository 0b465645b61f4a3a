"""Writes prompts about the documentation of the running Python, to train drafters on.

The texts are under the PSF licence, so a drafter that learns from answers to them can be shipped.

    python -m tools.training_prompts --passages 200 > docs.jsonl
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from pydoc_data.topics import topics

LONG, SHORT, MOST = 1200, 400, 3200  # characters of a passage: enough, at least, at most
ASKS = (
    "Summarize: {}",
    "Summarize the following text in a few sentences.\n\n{}",
    "What are the main points of this text?\n\n{}",
    "Explain this to a beginner:\n\n{}",
    "Answer a question about this text: what does it say first, and why does it matter?\n\n{}",
    "Rewrite this text in simpler words:\n\n{}",
)


def main() -> None:
    """Print one JSON line for each prompt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=200, metavar="N", help="passages to ask about (default: 200)")
    arguments = parser.parse_args()
    texts = [*topics.values(), *(ast.get_docstring(tree) or "" for tree in _modules())]
    passages = [passage for text in texts for passage in _passages(text.split("\n\n"))]
    random.Random(0).shuffle(passages)
    for i, passage in enumerate(passages[: arguments.passages]):
        print(json.dumps({"prompt": ASKS[i % len(ASKS)].format(passage)}))


def _modules() -> Iterator[ast.Module]:
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield ast.parse(path.read_text(encoding="utf-8"))


def _passages(paragraphs: Iterable[str]) -> Iterator[str]:
    """Yield consecutive paragraphs together, without short ones and indentation."""
    kept: list[str] = []
    for paragraph in paragraphs:
        text = re.sub(r"\s+", " ", paragraph).strip()
        kept += [text] if len(text) > 80 else []
        if sum(map(len, kept)) > LONG:
            yield "\n\n".join(kept)[:MOST]
            kept = []
    if sum(map(len, kept)) > SHORT:
        yield "\n\n".join(kept)


if __name__ == "__main__":
    main()
