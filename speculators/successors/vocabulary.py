"""The target's successors of every token of its vocabulary: they serve contexts that no text has shown yet.

The tables of a request have successors of a token only after the target has scored that token. Until then drafts come
from *recent* tokens, and half of the nodes are guesses. Rows read once per target fill that gap: one row per token, and
one per pair of a token and each of its likeliest successors. Each row is the mean over several prompts, and none holds
text of a request, so all requests may share them. One forward pass reads about a thousand rows, as nodes of one tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.compiled import compiled_in_place
from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView, Speculator
from engine.top_ids import TopIds
from engine.tree import ROOT, FloatArray, IntArray

FORMAT, VERSION = "spectra-vocabulary", "2"
TOP_K = 16  # successors kept per token
PAIR_TOP_K = 8  # successors kept per pair: after a longer context fewer tokens are probable
READ_TOP_K = 32  # ids read after each token: a mean of several lists needs more of each
BELOW = 16  # most pairs of a token
MOST_PAIRS = 1 << 18  # of all tokens: 18 MiB of rows


class VocabularyRows(NamedTuple):
    """Successors of tokens and of pairs, best first."""

    ids: IntArray  # [vocab, k] int32; no rows if they were not read
    weights: FloatArray  # [vocab, k] fp32: probabilities
    pair_keys: npt.NDArray[np.int64]  # [n_pairs], ascending; see ``pair_row``
    pair_ids: IntArray  # [n_pairs, k] int32
    pair_weights: FloatArray  # [n_pairs, k] fp32

    @classmethod
    def of(
        cls, ids: IntArray, weights: FloatArray, pairs: tuple[npt.NDArray[np.int64], IntArray, FloatArray]
    ) -> VocabularyRows:
        """Return rows of tokens and of ``pairs``: keys in any order, ids, weights."""
        order = np.argsort(pairs[0])
        return cls(ids, weights, pairs[0][order], pairs[1][order], pairs[2][order])

    @classmethod
    def none(cls) -> VocabularyRows:
        ids, pair_ids = np.empty((0, TOP_K), np.int32), np.empty((0, PAIR_TOP_K), np.int32)
        return cls(ids, ids.astype(np.float32), np.empty(0, np.int64), pair_ids, pair_ids.astype(np.float32))

    def copy(self) -> VocabularyRows:
        return self._replace(**{name: part.copy() for name, part in self._asdict().items()})

    def write(self, path: Path, model: str) -> None:
        """Write a file for the model with hash ``model``, atomically.

        Raises:
            ConfigError: the file cannot be written.
        """
        from safetensors import SafetensorError  # here: a router drafts from rows, but reads no file
        from safetensors.numpy import save_file

        partial = path.with_name(path.name + ".partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(self._asdict(), partial, {"format": FORMAT, "version": VERSION, "model": model})
            partial.replace(path)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"vocabulary file {path} cannot be written: {error}") from error

    @classmethod
    def read(cls, path: Path, model: str, vocab_size: int) -> VocabularyRows:
        """Return the rows in a file for the model with hash ``model``.

        Raises:
            ConfigError: the file cannot be read, has another format or version, or belongs to another model.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "numpy") as file:
                found = file.metadata() or {}
                fits = found == {"format": FORMAT, "version": VERSION, "model": model}
                rows = cls(*(file.get_tensor(name) for name in cls._fields)) if fits else cls.none()
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"vocabulary file {path} cannot be read: {error}") from error
        if len(rows.ids) != vocab_size:
            raise ConfigError(
                f"vocabulary file {path} has another version or belongs to another model (hash {found.get('model')}; "
                f"this model has {model}); create it with 'spectra vocabulary read'"
            )
        return rows


@compiled_in_place
def pair_row(rows: VocabularyRows, first: int, second: int) -> int:
    """Return the row of a pair of tokens; -1 if it has none."""
    key = (np.int64(first) << 32) | np.int64(second)
    place = int(np.searchsorted(rows.pair_keys, key))
    return place if place < len(rows.pair_keys) and rows.pair_keys[place] == key else -1


def mean_rows(read: Sequence[tuple[IntArray, FloatArray]], vocab: int, k: int) -> tuple[IntArray, FloatArray]:
    """Return the ``k`` likeliest successors by the mean of several lists of ids and weights, each ``[n, m]``.

    A list that lacks a token gives it weight 0. There are ``vocab`` tokens.
    """
    n, k = len(read[0][0]), min(k, vocab)
    ids, weights = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    for first in range(0, n, 64):
        block = slice(first, first + 64)
        rows = np.arange(len(ids[block]))[:, None]
        sums = np.zeros((len(rows), vocab), np.float32)
        for some_ids, some_weights in read:
            sums[rows, some_ids[block]] += some_weights[block] / len(read)
        best = np.argpartition(-sums, k - 1, axis=1)[:, :k]
        best = np.take_along_axis(best, np.argsort(-sums[rows, best], axis=1, kind="stable"), axis=1)
        ids[block], weights[block] = best, sums[rows, best]
    return ids, weights


class VocabularyReader(Speculator):
    """Drafts every token of the vocabulary as a child of the root, and keeps its ``top_k`` successors.

    Tokens ``below`` each token, ``[vocab, n_below]`` int32, become its children; ``n_below`` may be 0.
    """

    name = "vocabulary-reader"

    def __init__(self, below: IntArray, top_k: int) -> None:
        k = min(top_k, len(below))
        self.needs = Needs(node_top_k=k, top_logprobs=True)
        self._below = below
        shape = (len(below), 1 + below.shape[1], k)
        self.ids, self.weights = np.empty(shape, np.int32), np.empty(shape, np.float32)
        self.n_read = 0  # the first tokens of the vocabulary, whose successors are known

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Return the next tokens of the vocabulary; nothing after the last one."""
        n_below = self._below.shape[1]
        end = min(self.n_read + budget // (1 + n_below), len(self._below))
        tokens: list[int] = []
        parents: list[int] = []
        for token in range(self.n_read, end):
            parents += [ROOT, *[len(tokens)] * n_below]
            tokens += [token, *self._below[token].tolist()]
        return [Branch(tokens, self.name, parents)] if tokens else []

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        top = TopIds.of(outcome.top_ids)
        if len(outcome.tree) and top.logprobs is not None:
            end = self.n_read + len(outcome.tree) // self.ids.shape[1]
            ids, weights = self.ids[self.n_read : end], self.weights[self.n_read : end]
            ids[:] = top.ids[1:].reshape(ids.shape)
            weights[:] = np.exp(top.logprobs[1:]).reshape(ids.shape)
            self.n_read = end

    def behind_pairs(self) -> tuple[IntArray, FloatArray]:
        """Return ids and weights after every token and each token below it, ``[vocab * n_below, k]``."""
        k = self.ids.shape[2]
        return self.ids[:, 1:].reshape(-1, k), self.weights[:, 1:].reshape(-1, k)
