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
_NAMED: set[str] = set()  # logs whose first undecodable entry was named in a warning

logger = logging.getLogger(__name__)


def encode_tokens(tokens: Sequence[int]) -> bytes:
    """One text.

    Raises:
        ValueError: a token id is out of range.
    """
    ids = np.asarray(tokens, np.int64)
    if ids.ndim != 1 or (ids.size and not 0 <= ids.min() <= ids.max() <= _LARGEST):
        raise ValueError(f"a text is a sequence of token ids within 0 and {_LARGEST}, got {str(tokens)[:60]}")
    return ids.astype("<u4").tobytes()


def decode_tokens(raw: bytes, entry: str, where: str) -> Sequence[int]:
    """See ``encode_tokens``; an entry that does not decode has no tokens; a warning names the first of a log."""
    ids = np.frombuffer(raw, "<u4") if len(raw) % 4 == 0 else None
    if ids is None or (ids.size and ids.max() > _LARGEST):
        if where not in _NAMED:
            _NAMED.add(where)
            logger.warning(
                "%s: entry %s of the log does not decode; it and others like it are passed over", where, entry
            )
        return []
    tokens: list[int] = ids.tolist()
    return tokens


def parse_id(text: str, where: str) -> tuple[int, int]:
    """The two numbers of an entry's id; ``""`` is before all.

    Raises:
        StoreError: ``text`` is not an id.
    """
    if not text:
        return 0, 0
    found = _ID.fullmatch(text)
    if found is None:
        raise StoreError(f"{where}: {text[:40]!r} is not the id of a log entry; ids look like 1700000000000-0")
    return int(found[1]), int(found[2])


def next_id(last: tuple[int, int]) -> tuple[int, int]:
    """An id behind ``last``, also when the clock was put back."""
    now = int(time.time() * 1000)
    return (now, 0) if now > last[0] else (last[0], last[1] + 1)


def check_limit(limit: int) -> None:
    """Refuse a limit below one entry.

    Raises:
        ValueError: ``limit`` is below 1.
    """
    if limit < 1:
        raise ValueError(f"limit {limit} must be at least 1 entry")
