"""Writes the table of methods into docs/methods/index.md, from the methods themselves.

python -m tools.method_table            # after a change of a method's name, description, needs or source
"""

from __future__ import annotations

from pathlib import Path

from speculators.method import Method
from speculators.methods import BUILT_IN
from tools.request_fields import replace_table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "methods" / "index.md"
BEGIN, END = "<!-- python -m tools.method_table writes this table -->\n", "<!-- end of the table -->\n"


def method_table() -> str:
    """Return the table in Markdown, a row per method."""
    return "\n".join(["| method | what it does | needs | source |", "|---|---|---|---|", *map(_row, BUILT_IN), ""])


def _row(method: Method) -> str:
    page = _page(method)
    name = f"[`{method.name}`]({page})" if page else f"`{method.name}`"
    needs = ", ".join(f"`{need}`" for need in method.needs)
    return f"| {name} | {method.description} | {needs} | {method.source} |"


def _page(method: Method) -> str:
    """Return the page whose title names the method, or "" if there is none."""
    if method.name == "grammar":
        return "../reference/structured-output.md"
    titles = {path.name: path.read_text().split("\n")[0] for path in sorted(PAGE.parent.glob("*.md"))}
    return next((page for page, title in titles.items() if f"`{method.name}`" in title), "")


def page_with_table(page: str) -> str:
    """Return the page with the current table; raise ValueError if it has no place for one."""
    return replace_table(page, BEGIN, END, method_table())


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text()))
