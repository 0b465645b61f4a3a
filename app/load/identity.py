"""Whether answers to the same question are the same; not why they differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from app.load.records import Record

SHOWN_CHARS = 60


@dataclass(frozen=True)
class Identity:
    """What comparing answers found.

    Args:
        compared: answers that had another one to be compared with.
        groups: different questions that were answered more than once.
        differing: for each group whose answers differ, how, in words.
    """

    compared: int = 0
    groups: int = 0
    differing: list[str] = field(default_factory=list)


def identity(records: Iterable[Record], is_greedy: bool) -> Identity:
    """Compare whole answers to the same prompt and seed; a greedy answer does not depend on the seed.

    Requests without a seed are compared only if greedy.
    """
    groups: dict[tuple[int, int | None], list[Record]] = defaultdict(list)
    for record in records:
        if record.ok and (is_greedy or record.seed is not None):
            groups[(record.prompt, None if is_greedy else record.seed)].append(record)
    several = [group for group in groups.values() if len(group) > 1]
    differing = [found for group in several if (found := _difference(group))]
    return Identity(sum(map(len, several)), len(several), differing)


def _difference(group: list[Record]) -> str:
    first = group[0]
    for other in group[1:]:
        if (other.text, other.completion_tokens) != (first.text, first.completion_tokens):
            return _words(first, other)
    return ""


def _words(a: Record, b: Record) -> str:
    pairs = zip(a.text, b.text, strict=False)
    at = next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a.text), len(b.text)))
    seeds = f"seed {a.seed}" if a.seed == b.seed else f"seeds {a.seed}, {b.seed}"
    ends = f"{a.text[at : at + SHOWN_CHARS]!r} and {b.text[at : at + SHOWN_CHARS]!r}"
    return f"prompt {a.prompt}, {seeds}, requests {a.index} and {b.index}: from character {at} on {ends}"
