"""Tables and figures as Markdown that a terminal shows straight too; knows nothing of what is in them."""

from __future__ import annotations

from collections.abc import Sequence

NOTHING = "-"  # what is not known


def number(value: float | None, digits: int = 2) -> str:
    """A figure, or that there is none."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def markdown(head: Sequence[str], body: Sequence[Sequence[str]], n_names: int = 1) -> str:
    """A Markdown table, its columns padded: the first ``n_names`` hold names, the others figures."""
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]

    def row(cells: Sequence[str]) -> str:
        pairs = enumerate(zip(cells, widths, strict=True))
        padded = [cell.ljust(width) if i < n_names else cell.rjust(width) for i, (cell, width) in pairs]
        return f"| {' | '.join(padded)} |"

    rules = ["-" * (width + 2) if i < n_names else "-" * (width + 1) + ":" for i, width in enumerate(widths)]
    rule = f"|{'|'.join(rules)}|"
    return "\n".join([row(head), rule, *map(row, body)])
