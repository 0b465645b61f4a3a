"""Writes the tables of docs/reference/configuration.md from ``ServeConfig``.

python -m tools.config_tables            # after a change of a field
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from app.config.flags import FIELDS, is_advanced
from app.config.method_fields import MethodFields
from app.config.serve import GROUPS
from tools.request_fields import replace_table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "configuration.md"
BEGIN, END = "<!-- python -m tools.config_tables writes these tables -->\n", "<!-- end of the tables -->\n"


def tables() -> str:
    """Return a table in Markdown for each group of fields, and a line for the sections of methods."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    for group in GROUPS:
        title = str(group.model_config["title"])
        yield f"## {title[0].upper()}{title[1:]}\n"
        if issubclass(group, MethodFields):
            names = ", ".join(f"`{name}`" for name in group.model_fields)
            yield f"{names}. The [pages of the methods](../methods/index.md) list their keys.\n"
            continue
        yield "| field | default | meaning |\n|---|---|---|"
        yield from map(_row, group.model_fields)
        yield ""


def _row(field: str) -> str:
    info = FIELDS[field]
    default = "" if info.default_factory is not None or info.default is None else f"`{str(info.default).lower()}`"
    if isinstance(info.default, str):
        default = f"`{info.default}`"
    name = f"`{field}`" if is_advanced(field) else f"**`{field}`**"
    return f"| {name} | {default} | {str(info.description).replace('<', '&lt;')} |"


def page_with_tables(page: str) -> str:
    """Return the page with the current tables; raise ValueError if it has no place for them."""
    return replace_table(page, BEGIN, END, tables())


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text()))
