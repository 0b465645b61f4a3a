"""How live texts are written: token ids as little-endian uint32, entries ordered by ``MILLISECONDS-NUMBER``."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence

import numpy as np

from retrieval_store.errors import StoreError

_ID = re.compile(r"(\d{1,19})-(\d{1,19})", re.ASCII)
_LARGEST = 2**31 - 1  # ids are int32 everywhere else
_WARNED: set[str] = set()  # logs whose first undecodable entry was named in a warning

logger = logging.getLogger(__name__)


def encode_tokens(tokens: Sequence[int]) -> bytes:
    """Return a text as it is stored; raise ValueError if a token id is out of range."""
    ids = np.asarray(tokens, np.int64)
    if ids.ndim != 1 or (ids.size and not 0 <= ids.min() <= ids.max() <= _LARGEST):
        raise ValueError(f"a text is a sequence of token ids from 0 to {_LARGEST}, got {str(tokens)[:60]}")
    return ids.astype("<u4").tobytes()


def decode_tokens(raw: bytes, entry: str, where: str) -> Sequence[int]:
    """Return the tokens of a stored text; none if it does not decode, with a warning for the first one of a log."""
    ids = np.frombuffer(raw, "<u4") if len(raw) % 4 == 0 else None
    if ids is None or (ids.size and ids.max() > _LARGEST):
        if where not in _WARNED:
            _WARNED.add(where)
            logger.warning("%s: entry %s of the log does not decode; such entries are skipped", where, entry)
        return []
    tokens: list[int] = ids.tolist()
    return tokens


def parse_id(text: str, where: str) -> tuple[int, int]:
    """Return the two numbers of an entry's id, or raise StoreError; ``""`` comes before all ids."""
    found = _ID.fullmatch(text or "0-0")
    if found is None:
        raise StoreError(f"{where}: {text[:40]!r} is not the id of a log entry; ids look like 1700000000000-0")
    return int(found[1]), int(found[2])


def format_id(key: tuple[int, int]) -> str:
    return f"{key[0]}-{key[1]}"


def next_id(last: tuple[int, int]) -> tuple[int, int]:
    """Return an id after ``last``, even if the clock was set back."""
    now = int(time.time() * 1000)
    return (now, 0) if now > last[0] else (last[0], last[1] + 1)


def check_limit(limit: int) -> None:
    """Raise ValueError if ``limit`` is below 1."""
    if limit < 1:
        raise ValueError(f"limit is {limit}; it must be at least 1")
