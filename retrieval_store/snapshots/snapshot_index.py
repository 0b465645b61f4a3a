"""The index of a snapshot: its files, mapped. Processes that open the same folder share the memory.

Frequent short contexts are answered from counts in the snapshot (``context_table``), all others from the suffix array,
where they have few occurrences to count.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from retrieval_store.errors import DamagedSnapshotError
from retrieval_store.index.context_table import ContextTable, mapped_array
from retrieval_store.index.index import Continuations, Limits, Tokens
from retrieval_store.index.suffix_array import END
from retrieval_store.index.suffix_search import DEPTH, IDS, SuffixSearch, order_type
from retrieval_store.snapshots.snapshot import Manifest, check_files
from retrieval_store.snapshots.snapshot_writer import ORDER, STARTS, TEXT

_SCAN = 1 << 20  # tokens scanned at a time

Array = npt.NDArray[Any]


class SnapshotIndex(SuffixSearch):
    """Searches a snapshot; ``open_snapshot`` constructs it. Its files may be removed meanwhile: what is mapped stays.

    Counts of frequent contexts ignore ``Limits.samples``, have paths of at most 10 tokens, and leave out continuations
    that occur once.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        text = mapped_array(folder / TEXT, IDS)
        starts = mapped_array(folder / STARTS, np.dtype("<i8"))
        order = mapped_array(folder / ORDER, order_type(len(text)))
        _check_arrays(text, order, starts, manifest.tokens)
        super().__init__(text, order, starts)
        self._contexts = ContextTable(folder)

    def _continuations(self, context: Tokens, match: int, first: int, behind: int, limits: Limits) -> Continuations:
        counted = self._contexts.find(context[-match:], limits.depth, limits.nodes)
        return counted or super()._continuations(context, match, first, behind, limits)

    def documents(self) -> Iterator[Tokens]:
        """Yield the texts in the order in which they were written."""
        words = self._text
        start = 0
        for begin in range(0, len(words), _SCAN):
            for end in (np.flatnonzero(words[begin : begin + _SCAN] == END) + begin).tolist():
                if end > start:
                    yield words[start:end].astype(np.int32)
                start = end + 1


def open_snapshot(folder: Path, tokenizer_hash: str = "") -> SnapshotIndex:
    """Map the snapshot in ``folder``, checked by ``check_files``; ``verify`` checks the hashes as well."""
    manifest = check_files(folder, tokenizer_hash)
    try:
        return SnapshotIndex(folder, manifest)
    except (OSError, ValueError, RuntimeError) as error:
        raise DamagedSnapshotError(f"snapshot {folder} (version {manifest.version}) does not open: {error}") from error


def _check_arrays(text: Array, order: Array, starts: Array, n_tokens: int) -> None:
    """Raise ValueError if the arrays do not fit together: compiled loops do not check, and would crash the process."""
    if len(order) != n_tokens or len(text) < n_tokens + DEPTH or bool((text[-DEPTH:] != END).any()):
        raise ValueError(f"{TEXT} and {ORDER} do not hold the {n_tokens} tokens of the manifest")
    if n_tokens and int(order.max()) >= len(text) - DEPTH:
        raise ValueError(f"{ORDER} has positions beyond the end of {TEXT}")
    if not len(starts) or starts[0] != 0 or starts[-1] != n_tokens or bool((np.diff(starts) < 0).any()):
        raise ValueError(f"{STARTS} does not rise from 0 to the length of {ORDER}")
