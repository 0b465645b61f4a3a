"""Writes the table of methods into docs/methods.md, from the methods themselves.

python -m tools.method_table            # after a change of a method's name, description, needs or source
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from speculators.method import Method
from speculators.methods import BUILT_IN
from tools.request_fields import replace_table

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "methods.md"
BEGIN, END = "<!-- python -m tools.method_table writes this table -->\n", "<!-- end of the table -->\n"


def method_table() -> str:
    """Return the table in Markdown, a row per method."""
    return "\n".join(["| method | what it does | needs | source |", "|---|---|---|---|", *map(_row, BUILT_IN), ""])


def _row(method: Method) -> str:
    page = next((page for page in _pages(method) if (DOCS / page).exists()), None)
    name = f"`{method.name}`" if page is None else f"[`{method.name}`]({page})"
    needs = ", ".join(f"`{need}`" for need in method.needs)
    return f"| {name} | {method.description} | {needs} | {method.source} |"


def _pages(method: Method) -> Iterator[str]:
    """Yield where the page of a method may be: its own, that of its settings, that of all trained drafters."""
    yield f"methods/{method.name}.md"
    yield f"methods/{method.section.replace('_', '-')}.md"
    if method.is_trained:
        yield "methods/trained.md"
    if method.name == "grammar":
        yield "structured-output.md"


def page_with_table(page: str) -> str:
    """Return the page with the current table; raise ValueError if it has no place for one."""
    return replace_table(page, BEGIN, END, method_table())


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text()))
