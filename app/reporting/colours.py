"""Text in a terminal, in a colour for each source that drafted it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

COLOURS = (36, 33, 35, 32, 34, 31, 96, 93, 95, 92, 94, 91)  # ECMA-48's, those first that are easy to tell apart
PLAIN = "\x1b[0m"


class Palette:
    """A colour for each source, in the order in which sources are first painted; none if not ``enabled``."""

    def __init__(self, sources: Iterable[str] = (), enabled: bool = True) -> None:
        self._enabled = enabled
        self._starts: dict[str, str] = {}
        for name in sources:
            self._start(name)

    def painted(self, source: str, text: str) -> str:
        """``text`` in the colour of its source, line by line, for pagers that end a colour with its line."""
        if not self._enabled:
            return text
        start = self._start(source)
        return "\n".join(f"{start}{line}{PLAIN}" if line else "" for line in text.split("\n"))

    def legend(self, drafted: Mapping[str, int], own: int) -> str:
        """Which colour is whose and how many tokens came from it, most first; ``own``: tokens of the target itself."""
        most = sorted(drafted.items(), key=lambda entry: -entry[1])
        return ", ".join([*(self.painted(name, f"{name} {n}") for name, n in most), f"the target's own {own}"])

    def _start(self, source: str) -> str:
        return self._starts.setdefault(source, f"\x1b[{COLOURS[len(self._starts) % len(COLOURS)]}m")


def coloured(parts: Sequence[tuple[str, str | None]]) -> str:
    """The text of (token, source or None: the target) in colours, and a line with colours and numbers of tokens."""
    counts = Counter(source for text, source in parts if source is not None)
    palette = Palette(name for name, _ in counts.most_common())
    text = "".join(piece if source is None else palette.painted(source, piece) for piece, source in parts)
    own = sum(source is None and bool(piece) for piece, source in parts)
    return f"{text}\n{palette.legend(counts, own)}"
