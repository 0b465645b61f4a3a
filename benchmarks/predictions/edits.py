"""Edits that agents ask for: so many tokens changed, symbols renamed, functions inserted, values of JSON changed."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

CLUSTER = 12  # tokens of an edit where edits cluster
RENAMED = 3  # symbols
SYMBOL = re.compile(r"\b[a-z_][a-z_0-9]{3,}\b")
NAMES = ("Ada", "Bela", "Chen Wei", "Dora", "Émile", "Farid", "Grace Hopper", "Hugo", "Ines", "Jun")
FIELDS = ("name", "city", "email", "age", "balance", "active", "tags", "address", "since", "level")


def scattered(tokens: Sequence[int], share: float, rng: random.Random) -> list[int]:
    """So much of all tokens replaced, left out, or preceded by another; ``tokens`` have the others, too."""
    changed = list(tokens)
    for place in sorted(rng.sample(range(len(tokens)), round(share * len(tokens))), reverse=True):
        kind = rng.randrange(3)
        changed[place : place + (kind > 0)] = [rng.choice(tokens)] if kind < 2 else []
    return changed


def clustered(tokens: Sequence[int], share: float, rng: random.Random) -> list[int]:
    """The same in runs of ``CLUSTER`` tokens."""
    changed = list(tokens)
    size = min(CLUSTER, max(1, round(share * len(tokens))))
    n = max(1, round(share * len(tokens) / size))
    for place in sorted(rng.sample(range(0, len(tokens) - size + 1, size), n), reverse=True):
        kind = rng.randrange(3)
        new = [rng.choice(tokens) for _ in range(size)]
        changed[place : place + size * (kind > 0)] = new if kind < 2 else []
    return changed


def renamed(text: str, rng: random.Random) -> str:
    """Some of the most frequent names of a file become others."""
    frequent = [name for name, _ in Counter(SYMBOL.findall(text)).most_common(12)]
    for name in rng.sample(frequent, min(RENAMED, len(frequent))):
        text = re.sub(rf"\b{name}\b", f"{rng.choice(('new', 'other', 'my'))}_{name[::-1][:5]}_{len(name)}", text)
    return text


def inserted(text: str, other: str, rng: random.Random) -> str:
    """A part of another file, some 15 lines, between two paragraphs."""
    paragraphs, lines = text.split("\n\n"), other.split("\n")
    first = rng.randrange(max(1, len(lines) - 15))
    place = rng.randrange(1, max(2, len(paragraphs)))
    return "\n\n".join([*paragraphs[:place], "\n".join(lines[first : first + 15]), *paragraphs[place:]])


def document(rng: random.Random, n: int) -> list[dict[str, Any]]:
    """Records with some fields."""
    return [{"id": 1000 + i, **{field: _value(field, rng) for field in FIELDS}} for i in range(n)]


def revalued(records: Sequence[dict[str, Any]], share: float, rng: random.Random) -> list[dict[str, Any]]:
    """So much of all values drawn anew."""
    return [
        {key: _value(key, rng) if key in FIELDS and rng.random() < share else value for key, value in record.items()}
        for record in records
    ]


def _value(field: str, rng: random.Random) -> Any:
    if field in ("age", "level"):
        return rng.randrange(100)
    if field == "balance":
        return round(rng.uniform(-1000, 100_000), 2)
    if field == "active":
        return rng.random() < 0.5
    if field == "tags":
        return rng.sample(("new", "vip", "late", "north", "trial"), rng.randrange(4))
    if field == "address":
        return {"street": f"{rng.randrange(200)} {rng.choice(NAMES)} Street", "zip": f"{rng.randrange(10**5):05}"}
    return f"{rng.choice(NAMES)} {rng.choice(NAMES)} {rng.randrange(1000)}"


def as_text(records: Sequence[dict[str, Any]]) -> str:
    """As APIs write it."""
    return json.dumps(records, indent=2, ensure_ascii=False)
