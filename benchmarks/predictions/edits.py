"""Answers edited in known ways, as predictions of themselves: tokens changed, symbols renamed, functions inserted."""

from __future__ import annotations

import json
import random
import re
import sysconfig
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

SHARES = (0.01, 0.1, 0.3)
SOURCES = ("textwrap.py", "heapq.py", "shlex.py", "bisect.py", "fnmatch.py", "sched.py", "quopri.py", "cmd.py")
CHARACTERS = 5000  # of a file
CLUSTER = 12  # tokens of an edit where edits cluster
RENAMED = 3  # symbols
SYMBOL = re.compile(r"\b[a-z_][a-z_0-9]{3,}\b")
NAMES = ("Ada", "Bela", "Chen Wei", "Dora", "Émile", "Farid", "Grace Hopper", "Hugo", "Ines", "Jun")
FIELDS = ("name", "city", "email", "age", "balance", "active", "tags", "address", "since", "level")


class Edit(NamedTuple):
    """A file that an agent rewrites: the old one is the prediction, the new one the answer."""

    kind: str
    request: str
    prediction: str
    answer: str


def edits(n_files: int, seed: int) -> list[Edit]:
    """Return edits of all kinds, of modules of Python's standard library and of JSON documents."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    texts = [(folder / name).read_text(encoding="utf-8")[:CHARACTERS] for name in SOURCES[:n_files]]
    found: list[Edit] = []
    for i, text in enumerate(texts):
        rng, other = random.Random(f"{seed}/{i}"), texts[(i + 1) % len(texts)]
        for share in SHARES:
            for name, change in (("clustered", clustered), ("scattered", scattered)):
                words = _words(text)
                kept = dict(enumerate(words))
                edited = "".join(kept[place] for place in change(range(len(words)), share, rng))
                found.append(Edit(f"{share:.0%} {name}", "Apply the patch.", text, edited))
        found.append(Edit("renamed symbols", "Rename three symbols.", text, renamed(text, rng)))
        found.append(Edit("inserted function", "Insert a function.", text, inserted(text, other, rng)))
        records = document(rng, 12)
        for share in (0.1, 0.3):
            new = as_text(revalued(records, share, rng))
            found.append(Edit(f"JSON, {share:.0%} of values", "Update the records.", as_text(records), new))
        found.append(Edit("useless", "Write another file.", other, text))
    return found


def _words(text: str) -> list[str]:
    """Return the words with the blanks before them, and everything else by character."""
    words: list[str] = []
    for character in text:
        joins = words and (character.isalnum() or character == "_") and (words[-1][-1].isalnum() or words[-1] in " _")
        if joins:
            words[-1] += character
        else:
            words.append(character)
    return words


def scattered(tokens: Sequence[int], share: float, rng: random.Random) -> list[int]:
    """Return the tokens with a share of them replaced, left out, or preceded by another one of them."""
    changed = list(tokens)
    for place in sorted(rng.sample(range(len(tokens)), round(share * len(tokens))), reverse=True):
        kind = rng.randrange(3)
        changed[place : place + (kind > 0)] = [rng.choice(tokens)] if kind < 2 else []
    return changed


def clustered(tokens: Sequence[int], share: float, rng: random.Random) -> list[int]:
    """Return the tokens with the same share changed in runs of ``CLUSTER`` tokens."""
    changed = list(tokens)
    size = min(CLUSTER, max(1, round(share * len(tokens))))
    n = max(1, round(share * len(tokens) / size))
    for place in sorted(rng.sample(range(0, len(tokens) - size + 1, size), n), reverse=True):
        kind = rng.randrange(3)
        new = [rng.choice(tokens) for _ in range(size)]
        changed[place : place + size * (kind > 0)] = new if kind < 2 else []
    return changed


def renamed(text: str, rng: random.Random) -> str:
    """Return a file with other names for some of its most frequent ones."""
    frequent = [name for name, _ in Counter(SYMBOL.findall(text)).most_common(12)]
    for name in rng.sample(frequent, min(RENAMED, len(frequent))):
        text = re.sub(rf"\b{name}\b", f"{rng.choice(('new', 'other', 'my'))}_{name[::-1][:5]}_{len(name)}", text)
    return text


def inserted(text: str, other: str, rng: random.Random) -> str:
    """Return a file with some 15 lines of another one between two paragraphs."""
    paragraphs, lines = text.split("\n\n"), other.split("\n")
    first = rng.randrange(max(1, len(lines) - 15))
    place = rng.randrange(1, max(2, len(paragraphs)))
    return "\n\n".join([*paragraphs[:place], "\n".join(lines[first : first + 15]), *paragraphs[place:]])


def document(rng: random.Random, n: int) -> list[dict[str, Any]]:
    """Return ``n`` records with random values."""
    return [{"id": 1000 + i, **{field: _value(field, rng) for field in FIELDS}} for i in range(n)]


def revalued(records: Sequence[dict[str, Any]], share: float, rng: random.Random) -> list[dict[str, Any]]:
    """Return the records with a share of all values drawn again."""
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
    """Return the records as APIs write them."""
    return json.dumps(records, indent=2, ensure_ascii=False)
