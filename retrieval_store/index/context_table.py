"""Counts, writes and reads the continuations of the frequent short contexts of a snapshot.

A short context may occur a million times, and a query would take milliseconds to count what followed. So a snapshot has
the most frequent continuations of each context of up to ``CONTEXT`` tokens that occurs at least ``FREQUENT`` times.

``contexts.marisa`` is a marisa trie of contexts, three bytes a token. ``records.idx`` has the offset in ``records.bin``
of the record of each key. A record of ``n`` nodes has the number of counted occurrences and ``n`` (two uint32), tokens
and counts (``n`` uint32 each), and parents plus one (``n`` bytes). Little-endian.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import marisa_trie
import numpy as np
import numpy.typing as npt

from retrieval_store.index.index import ROOT, Continuations, Tokens
from retrieval_store.index.suffix_kernels import count_continuations

CONTEXTS, OFFSETS, RECORDS = "contexts.marisa", "records.idx", "records.bin"
FILES = (CONTEXTS, OFFSETS, RECORDS)
CONTEXT = 4  # tokens
FREQUENT = 64  # occurrences
PATH = 10  # tokens of a continuation
NODES = 64  # of a context; those that occur once are left out
_HEAD = struct.Struct("<II")
assert NODES < 256, "parents are bytes"


class ContextTableWriter:
    """Writes records of frequent contexts to ``folder``; memory holds their keys only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records = (folder / RECORDS).open("wb")
        self._offsets: dict[bytes, int] = {}  # key -> offset of its record

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, text: npt.NDArray[Any], order: npt.NDArray[Any], shared: npt.NDArray[np.uint8]) -> None:
        """Count and write the frequent contexts of a bucket ``order`` ``[n]`` of the suffix array of ``text``.

        Buckets come in order; ``shared`` ``[n]`` is the number of tokens that a suffix shares with the one before it.
        """
        contexts: list[tuple[bytes, int, int, int]] = []  # key, tokens, first place in the order, occurrences
        for length in range(1, CONTEXT + 1):
            starts = np.flatnonzero(shared < length)
            counts = np.diff(starts, append=len(shared))
            is_frequent = counts >= FREQUENT
            for start, count in zip(starts[is_frequent].tolist(), counts[is_frequent].tolist(), strict=True):
                first = int(order[start])
                contexts.append((_key(text[first : first + length]), length, start, count))
        for key, length, start, count in sorted(contexts):  # so the size of a bucket does not change the files
            tokens, parents, counts = count_continuations(text, order, start, start + count, length, count, PATH, NODES)
            n = int(np.count_nonzero(counts > 1))  # the others come last
            self._offsets[key] = self._records.tell()
            self._records.write(_HEAD.pack(count, n))
            self._records.write(tokens[:n].astype("<u4").tobytes() + counts[:n].astype("<u4").tobytes())
            self._records.write((parents[:n] + 1).astype(np.uint8).tobytes())

    def close(self) -> None:
        """Write the trie and the offsets."""
        self._records.close()
        trie = marisa_trie.BinaryTrie(self._offsets)
        trie.save(str(self._folder / CONTEXTS))
        offsets = np.zeros(len(self._offsets), "<u8")
        for key, offset in self._offsets.items():
            offsets[trie.key_id(key)] = offset
        (self._folder / OFFSETS).write_bytes(offsets.tobytes())


class ContextTable:
    """Maps the files in ``folder``, which were checked, and reads records; thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._trie = marisa_trie.BinaryTrie()
        self._trie.mmap(str(folder / CONTEXTS))
        self._offsets: memoryview[int] = mapped_array(folder / OFFSETS, np.dtype("<u8")).data
        self._records: memoryview[int] = mapped_array(folder / RECORDS, np.dtype("u1")).data

    def find(self, suffix: Tokens, depth: int, nodes: int) -> Continuations | None:
        """Return the continuations of the context ``suffix`` ``[n]``; None if it is not frequent.

        At most ``nodes`` nodes, in paths of at most ``depth`` tokens.
        """
        if len(suffix) > CONTEXT:
            return None
        number = self._trie.get(_key(suffix))
        if number is None:
            return None
        records, at = self._records, self._offsets[number]
        counted, n = _HEAD.unpack_from(records, at)
        at += _HEAD.size
        kept = min(n, nodes)
        tokens = list(struct.unpack_from(f"<{kept}I", records, at))
        counts = list(struct.unpack_from(f"<{kept}I", records, at + 4 * n))
        parents = [above - 1 for above in records[at + 8 * n : at + 8 * n + kept]]
        found = Continuations(len(suffix), counted, tokens, parents, counts)
        if depth >= PATH:
            return found
        depths: list[int] = []
        for parent in found.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return found.without([here > depth for here in depths])


def _key(context: npt.NDArray[np.integer]) -> bytes:
    """Return three bytes for each id, the highest first."""
    raw = context.astype(">u4").tobytes()
    key = bytearray(3 * len(context))
    key[0::3], key[1::3], key[2::3] = raw[1::4], raw[2::4], raw[3::4]
    return bytes(key)


def mapped_array(path: Path, kind: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
    """Map a file's numbers, which all processes that map it share."""
    with path.open("rb") as file:
        raw = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
    return np.frombuffer(raw, kind)
