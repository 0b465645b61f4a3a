"""Documented functions and classes of the running Python's standard library.

Reads source files with `ast`; never imports them.
"""

from __future__ import annotations

import ast
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_CHARS = 2400  # longer definitions would be cut by the packing anyway
MIN_CHARS = 80
SKIPPED = {"site-packages", "test", "tests", "idle_test", "__pycache__", "pydoc_data", "encodings"}
Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Definition:
    """One function, method or class; all texts are dedented."""

    kind: str  # "function" or "class"
    name: str
    signature: str  # first logical line, without decorators
    summary: str  # the docstring's first paragraph on one line
    head: str  # signature and docstring
    source: str  # the whole definition

    @property
    def key(self) -> str:
        """What the definition is about: equal in copies of it elsewhere in the library."""
        return f"{self.name}: {self.summary}"


def read_definitions() -> Iterator[Definition]:
    """All definitions of suitable length, file by file in sorted order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if SKIPPED.isdisjoint(path.relative_to(root).parts):
            yield from definitions_in(path)


def definitions_in(path: Path) -> Iterator[Definition]:
    """The definitions of one file; a file that does not parse has none."""
    try:
        text = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, UnicodeDecodeError):
        return
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, Node):
            definition = describe(node, lines)
            if definition is not None:
                yield definition


def describe(node: Node, lines: list[str]) -> Definition | None:
    """The definition at `node`, or None when it has no docstring or an unsuitable length."""
    docstring = ast.get_docstring(node)
    if not docstring:
        return None
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    source = cut(lines, first, node.end_lineno)
    if not MIN_CHARS <= len(source) <= MAX_CHARS or len(source) < len(docstring) + 60:
        return None
    body = node.body[0]
    signature = " ".join(cut(lines, node.lineno, max(node.lineno, body.lineno - 1)).split())
    return Definition(
        kind="class" if isinstance(node, ast.ClassDef) else "function",
        name=node.name,
        signature=signature.rstrip(":"),
        summary=" ".join(docstring.split("\n\n")[0].split()),
        head=cut(lines, first, body.end_lineno),
        source=source,
    )


def cut(lines: list[str], first: int, last: int | None) -> str:
    """Lines `first` to `last` (from 1, inclusive), dedented."""
    return textwrap.dedent("\n".join(lines[first - 1 : last])).strip()
