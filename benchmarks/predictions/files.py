"""The agentic set: files as they were, which are predicted, and as they are wanted, which are the answers."""

from __future__ import annotations

import random
import sysconfig
from pathlib import Path
from typing import NamedTuple

from benchmarks.predictions.edits import as_text, clustered, document, inserted, renamed, revalued, scattered

SHARES = (0.01, 0.1, 0.3)
SOURCES = ("textwrap.py", "heapq.py", "shlex.py", "bisect.py", "fnmatch.py", "sched.py", "quopri.py", "cmd.py")
CHARACTERS = 5000  # of a file


class Edit(NamedTuple):
    """A file that an agent is asked to write anew."""

    kind: str
    request: str
    prediction: str
    answer: str


def edits(n_files: int, seed: int) -> list[Edit]:
    """Edits of all kinds of this Python's own modules, and of JSON documents."""
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
    """Words with the blanks before them, and everything else by character."""
    words: list[str] = []
    for character in text:
        joins = words and (character.isalnum() or character == "_") and (words[-1][-1].isalnum() or words[-1] in " _")
        if joins:
            words[-1] += character
        else:
            words.append(character)
    return words
