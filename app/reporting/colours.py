"""Text in a terminal, in a colour for each source that drafted it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

COLOURS = (36, 33, 35, 32, 34, 31, 96, 93, 95, 92, 94, 91)  # ECMA-48's, those first that are easy to tell apart
PLAIN = "\x1b[0m"


def coloured(parts: Sequence[tuple[str, str | None]]) -> str:
    """The text, and a line below that says which colour is whose and how many tokens came from it.

    Args:
        parts: the text of every token and its source; None: the target itself, without a colour.
    """
    counts = Counter(source for text, source in parts if source is not None)
    starts = {name: f"\x1b[{COLOURS[i % len(COLOURS)]}m" for i, (name, _) in enumerate(counts.most_common())}
    text = "".join(piece if source is None else _in(starts[source], piece) for piece, source in parts)
    drafted = [_in(starts[name], f"{name} {n}") for name, n in counts.most_common()]
    own = sum(source is None and bool(piece) for piece, source in parts)
    return "\n".join([text, ", ".join([*drafted, f"the target's own {own}"])])


def _in(start: str, text: str) -> str:
    """Line by line, for pagers that end a colour with its line."""
    return "\n".join(f"{start}{line}{PLAIN}" if line else "" for line in text.split("\n"))
