"""The index of a snapshot: its files, mapped. Processes that open the same folder share the memory.

Short frequent contexts are answered from counts made beforehand (``context_table``), everything else from the suffix
array, where few occurrences are left to count.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from retrieval_store.errors import DamagedSnapshotError
from retrieval_store.index.context_table import ContextTable, mapped_array
from retrieval_store.index.index import Continuations, Limits, Suffixes, Tokens
from retrieval_store.index.suffix_array import END
from retrieval_store.index.suffix_search import DEPTH, IDS, SuffixSearch, check_limits, order_type
from retrieval_store.snapshots.snapshot import Manifest, check_sizes, check_tokenizer, read_manifest
from retrieval_store.snapshots.snapshot_writer import ORDER, STARTS, TEXT

_SCAN = 1 << 20  # tokens looked at together

Array = npt.NDArray[Any]


class SnapshotIndex:
    """Immutable; safe to share between threads. ``open_snapshot`` makes one.

    The files may be removed while it lives: what is mapped stays.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        self.folder = folder
        self._text = mapped_array(folder / TEXT, IDS)
        starts = mapped_array(folder / STARTS, np.dtype("<i8"))
        order = mapped_array(folder / ORDER, order_type(len(self._text)))
        _check_arrays(self._text, order, starts, manifest.tokens)
        self._search = SuffixSearch(self._text, order, starts)
        self._contexts = ContextTable(folder)

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self._search)

    @property
    def version(self) -> str:
        """Of the snapshot."""
        return self.manifest.version

    @property
    def suffixes(self) -> Suffixes | None:
        """See ``Index.suffixes``."""
        return self._search.suffixes

    def query(self, context: Tokens, limits: Limits) -> Continuations | None:
        """See ``Index.query``. Where a context was counted beforehand, ``samples`` has no say, paths have at most 10
        tokens, and continuations that occurred once are left out.

        Raises:
            ValueError: ``longest`` and ``depth`` together exceed ``DEPTH``.
        """
        check_limits(limits)
        found = self._search.longest(context, limits)
        if found is None:
            return None
        counted = self._contexts.find(context[-found[0] :], limits.depth, limits.nodes)
        return counted if counted is not None else self._search.continuations(*found, limits)

    def documents(self) -> Iterator[Tokens]:
        """The texts, in the order in which they were written."""
        words = self._text
        start = 0
        for begin in range(0, len(words), _SCAN):
            for end in (np.flatnonzero(words[begin : begin + _SCAN] == END) + begin).tolist():
                if end > start:
                    yield words[start:end].astype(np.int32)
                start = end + 1


def open_snapshot(folder: Path, tokenizer_hash: str = "") -> SnapshotIndex:
    """Map the snapshot in ``folder``. Hashes are not checked again: see ``retrieval_store.snapshots.snapshot.verify``.

    Args:
        folder: with a manifest.
        tokenizer_hash: of the target; "" accepts any.

    Raises:
        ForeignSnapshotError: another tokenizer, format or format version.
        DamagedSnapshotError: files are missing or do not have their sizes.
    """
    manifest = read_manifest(folder)
    check_tokenizer(manifest, tokenizer_hash, str(folder))
    check_sizes(folder, manifest)
    try:
        return SnapshotIndex(folder, manifest)
    except (OSError, ValueError, RuntimeError) as error:
        raise DamagedSnapshotError(f"snapshot {folder} (version {manifest.version}) does not open: {error}") from error


def _check_arrays(text: Array, order: Array, starts: Array, n_tokens: int) -> None:
    """Refuse arrays that lead out of each other: compiled loops do not check, and would take the process down.

    Raises:
        ValueError: says what is wrong.
    """
    if len(order) != n_tokens or len(text) < n_tokens + DEPTH or bool((text[-DEPTH:] != END).any()):
        raise ValueError(f"{TEXT} and {ORDER} do not hold the {n_tokens} tokens of the manifest")
    if n_tokens and int(order.max()) >= len(text) - DEPTH:
        raise ValueError(f"{ORDER} has positions beyond the end of {TEXT}")
    if not len(starts) or starts[0] != 0 or starts[-1] != n_tokens or bool((np.diff(starts) < 0).any()):
        raise ValueError(f"{STARTS} does not rise from 0 to the length of {ORDER}")
