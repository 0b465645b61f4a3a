"""The files in which a snapshot keeps the continuations of its frequent contexts, and how they are read.

``contexts.marisa`` is a marisa trie of contexts, three bytes a token; a key's number finds its record through
``records.idx`` in ``records.bin``. A record holds, for ``n`` nodes: how many occurrences were counted and ``n``
(two uint32), then tokens and counts (``n`` uint32 each), then parents plus one (``n`` bytes). Little-endian.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path

import marisa_trie
import numpy as np
import numpy.typing as npt

from retrieval_store.index.context_counts import CONTEXT, NODES, PATH, ContextCounts
from retrieval_store.index.index import ROOT, Continuations, Tokens

CONTEXTS, OFFSETS, RECORDS = "contexts.marisa", "records.idx", "records.bin"
FILES = (CONTEXTS, OFFSETS, RECORDS)
_HEAD = struct.Struct("<II")
assert NODES < 256, "parents are bytes"


class ContextTableWriter:
    """Collects records of frequent contexts; memory holds their keys only.

    Args:
        folder: to write into.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records = (folder / RECORDS).open("wb")
        self._offsets: dict[bytes, int] = {}  # key -> where its record begins

    def __len__(self) -> int:
        """Number of contexts so far."""
        return len(self._offsets)

    def add(self, contexts: Iterable[ContextCounts]) -> None:
        """Write the records of a bucket; every context comes once, and buckets come in order."""
        # Sorted: however the suffixes were divided into buckets, the same texts make the same files.
        for key, found in sorted(((_key(found.context), found) for found in contexts), key=itemgetter(0)):
            self._offsets[key] = self._records.tell()
            self._records.write(_HEAD.pack(found.counted, len(found.tokens)))
            self._records.write(found.tokens.astype("<u4").tobytes() + found.counts.astype("<u4").tobytes())
            self._records.write((found.parents + 1).astype(np.uint8).tobytes())

    def close(self) -> None:
        """Write trie and offsets."""
        self._records.close()
        trie = marisa_trie.BinaryTrie(self._offsets)
        trie.save(str(self._folder / CONTEXTS))
        offsets = np.zeros(len(self._offsets), "<u8")
        for key, offset in self._offsets.items():
            offsets[trie.key_id(key)] = offset
        (self._folder / OFFSETS).write_bytes(offsets.tobytes())


class ContextTable:
    """Maps the files and reads records; safe to share between threads.

    Args:
        folder: of a snapshot whose files were checked.
    """

    def __init__(self, folder: Path) -> None:
        self._trie = marisa_trie.BinaryTrie()
        self._trie.mmap(str(folder / CONTEXTS))
        self._offsets: memoryview[int] = mapped_array(folder / OFFSETS, np.dtype("<u8")).data
        self._records = mapped(folder / RECORDS)

    def find(self, suffix: Tokens, depth: int, nodes: int) -> Continuations | None:
        """The continuations of ``suffix`` ``[n]``; None where it is not frequent.

        Args:
            suffix: the context.
            depth: tokens of a path, at most.
            nodes: at most.
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
        return found if depth >= PATH else _cut(found, depth)


def _key(context: npt.NDArray[np.integer]) -> bytes:
    """Three bytes for each id, the highest first."""
    raw = context.astype(">u4").tobytes()
    key = bytearray(3 * len(context))
    key[0::3], key[1::3], key[2::3] = raw[1::4], raw[2::4], raw[3::4]
    return bytes(key)


def _cut(found: Continuations, depth: int) -> Continuations:
    """Without paths of more than ``depth`` tokens."""
    depths: list[int] = []
    for parent in found.parents:
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return found.without([here > depth for here in depths])


def mapped(path: Path) -> mmap.mmap | bytes:
    """A file's bytes, shared with every process that maps it."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""


def mapped_array(path: Path, kind: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
    """A file's numbers, shared in the same way."""
    return np.frombuffer(mapped(path), kind)
