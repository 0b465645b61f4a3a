"""Tables as text: Markdown that is readable in a terminal too, and plain columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence

NOTHING = "-"  # in place of a figure that is unknown


def number(value: float | None, digits: int = 2) -> str:
    """``value`` with ``digits`` decimals, or ``NOTHING`` in place of None."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def markdown(head: Sequence[str], body: Sequence[Sequence[str]], n_names: int = 1) -> str:
    """A Markdown table with padded columns: the first ``n_names`` hold names, the others figures."""
    left = range(n_names)
    widths = _widths([head, *body])
    rules = ["-" * (width + 2) if i in left else "-" * (width + 1) + ":" for i, width in enumerate(widths)]
    lines = [f"| {' | '.join(_padded(row, widths, left))} |" for row in (head, *body)]
    return "\n".join([lines[0], f"|{'|'.join(rules)}|", *lines[1:]])


def columns(rows: Sequence[Sequence[str]], left: Collection[int]) -> str:
    """Rows as columns two spaces apart; the columns in ``left`` are flush left, the others flush right."""
    widths = _widths(rows)
    return "\n".join("  ".join(_padded(row, widths, left)).rstrip() for row in rows)


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, cells)) for cells in zip(*rows, strict=True)]


def _padded(row: Sequence[str], widths: Sequence[int], left: Collection[int]) -> list[str]:
    pairs = enumerate(zip(row, widths, strict=True))
    return [cell.ljust(width) if i in left else cell.rjust(width) for i, (cell, width) in pairs]
