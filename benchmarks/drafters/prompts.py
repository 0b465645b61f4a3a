"""Writes prompts about the documentation and the functions of the running Python, to train drafters on.

The texts are under the PSF licence, so a drafter that learns from answers to them can be shipped.

    python -m benchmarks.drafters.prompts --passages 200 --functions 100 > docs.jsonl
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
    parser.add_argument(
        "--passages", type=int, default=200, metavar="N", help="questions about a passage (default: 200)"
    )
    parser.add_argument("--functions", type=int, default=100, metavar="N", help="functions to write (default: 100)")
    arguments = parser.parse_args()
    order, trees = random.Random(0), list(_modules())
    texts = [*topics.values(), *(ast.get_docstring(tree) or "" for tree in trees)]
    passages = [passage for text in texts for passage in _passages(text.split("\n\n"))]
    functions = [function for tree in trees for function in _functions(tree)]
    order.shuffle(passages)
    order.shuffle(functions)
    asked = [ASKS[i % len(ASKS)].format(passage) for i, passage in enumerate(passages[: arguments.passages])]
    for prompt in (*asked, *functions[: arguments.functions]):
        print(json.dumps({"prompt": prompt}))


def _modules() -> Iterator[ast.Module]:
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield ast.parse(path.read_text(encoding="utf-8"))


def _passages(paragraphs: Iterable[str]) -> Iterator[str]:
    """Yield consecutive paragraphs together, without short ones and indentation."""
    kept: list[str] = []
    for paragraph in paragraphs:
        text = _on_one_line(paragraph)
        kept += [text] if len(text) > 80 else []
        if sum(map(len, kept)) > LONG:
            yield "\n\n".join(kept)[:MOST]
            kept = []
    if sum(map(len, kept)) > SHORT:
        yield "\n\n".join(kept)


def _functions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) and node.name[0] != "_" else None
        if isinstance(node, ast.FunctionDef) and text and 40 < len(text) < 400:
            names = ", ".join(one.arg for one in node.args.args if one.arg != "self")
            yield f"Write a Python function {node.name}({names}): {_on_one_line(text)}"


def _on_one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


if __name__ == "__main__":
    main()
