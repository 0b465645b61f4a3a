"""What a target says behind every token of its vocabulary: successors for contexts that no text has shown yet.

Tables that learn from a request know a token's successors once the target has scored that token. Until then nothing but
*recent* tokens is known, and half of the nodes are guesses. Rows that are read once per target fill that gap: one per
token, and one per pair of a token and each of its likeliest successors, each the mean of what the target says after
several beginnings. No text of a request is in them, so that all requests may share them. One forward of the target
reads about a thousand rows, as the nodes of one tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.compiled.functions import compiled_in_place
from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.top_ids import TopIds
from engine.tree import ROOT, FloatArray, IntArray

FORMAT, VERSION = "spectra-vocabulary", "2"
TOP_K = 16  # successors kept behind a token
PAIR_TOP_K = 8  # and behind a pair: what a longer context says is concentrated
READ_TOP_K = 32  # ids read back: a mean of several lists needs more of each
BELOW = 16  # pairs of a token, at most
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
        cls,
        ids: IntArray,
        weights: FloatArray,
        pairs: tuple[npt.NDArray[np.int64], IntArray, FloatArray] | None = None,
    ) -> VocabularyRows:
        """Rows behind tokens, and behind ``pairs`` in any order: keys, ids, weights."""
        if pairs is None:
            pairs = np.empty(0, np.int64), np.empty((0, PAIR_TOP_K), np.int32), np.empty((0, PAIR_TOP_K), np.float32)
        order = np.argsort(pairs[0])
        return cls(ids, weights, pairs[0][order], pairs[1][order], pairs[2][order])

    @classmethod
    def none(cls) -> VocabularyRows:
        """No token's."""
        return cls.of(np.empty((0, TOP_K), np.int32), np.empty((0, TOP_K), np.float32))

    def copy(self) -> VocabularyRows:
        """The same in arrays that may be written to: Ray's may not, and are another type to Numba."""
        pairs = self.pair_keys.copy(), self.pair_ids.copy(), self.pair_weights.copy()
        return VocabularyRows(self.ids.copy(), self.weights.copy(), *pairs)

    def write(self, path: Path, model: str) -> None:
        """Write a file for the model of hash ``model``; a reader never sees half of one.

        Raises:
            ConfigError: it cannot be written there.
        """
        from safetensors import SafetensorError  # here: a router drafts with rows, and reads no file
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
        """The rows in a file, checked against the model that is to use them.

        Raises:
            ConfigError: it cannot be read, is no such file, or belongs to another version or model.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "numpy") as file:
                told = file.metadata() or {}
                fits = (told.get("format"), told.get("version"), told.get("model")) == (FORMAT, VERSION, model)
                made = cls(*(file.get_tensor(name) for name in cls._fields)) if fits else cls.none()
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"vocabulary file {path} cannot be read: {error}") from error
        if len(made.ids) != vocab_size:
            raise ConfigError(
                f"vocabulary file {path} is not of this version, or belongs to another model (hash {told.get('model')}"
                f", this one has {model}); 'spectra vocabulary read' makes one"
            )
        return made


@compiled_in_place
def pair_row(rows: VocabularyRows, first: int, second: int) -> int:
    """Row of a pair of tokens; -1 if it has none."""
    key = (np.int64(first) << 32) | np.int64(second)
    place = int(np.searchsorted(rows.pair_keys, key))
    return place if place < len(rows.pair_keys) and rows.pair_keys[place] == key else -1


def mean_rows(read: Sequence[tuple[IntArray, FloatArray]], vocab: int, k: int) -> tuple[IntArray, FloatArray]:
    """The ``k`` likeliest successors by the mean of several lists; a token that a list lacks has no weight there.

    Args:
        read: ids and weights of each list, ``[n, m]``.
        vocab: ids that there are.
        k: successors that are kept, where there are so many tokens.
    """
    n, k = len(read[0][0]), min(k, vocab)
    ids, weights = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    for first in range(0, n, 64):
        here = slice(first, first + 64)
        rows = np.arange(len(ids[here]))[:, None]
        sums = np.zeros((len(rows), vocab), np.float32)
        for some_ids, some_weights in read:
            sums[rows, some_ids[here]] += some_weights[here] / len(read)
        best = np.argpartition(-sums, k - 1, axis=1)[:, :k]
        best = np.take_along_axis(best, np.argsort(-sums[rows, best], axis=1, kind="stable"), axis=1)
        ids[here], weights[here] = best, sums[rows, best]
    return ids, weights


class VocabularyReader:
    """A speculator that has the target score every token of the vocabulary as a child of the root, and below each some
    tokens more.

    Args:
        below: tokens that are scored behind each token, ``[vocab, n_below]`` int32; may be none.
        top_k: successors that are read.
    """

    name = "vocabulary-reader"

    def __init__(self, below: IntArray, top_k: int) -> None:
        k = min(top_k, len(below))
        self.needs = Needs(node_top_k=k, top_logprobs=True)
        self._below = below
        n_rows = (len(below), 1 + below.shape[1], k)
        self.ids, self.weights = np.empty(n_rows, np.int32), np.empty(n_rows, np.float32)
        self.n_read = 0  # tokens whose successors are known, the first of the vocabulary

    def begin(self, view: RequestView) -> None:
        """Nothing to remember."""

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """The next tokens of the vocabulary; none once the target has decided about those that were proposed."""
        end = min(self.n_read + budget // self.ids.shape[1], len(self._below))
        tokens: list[int] = []
        parents: list[int] = []
        for token in range(self.n_read, end):
            above = len(tokens)
            tokens += [token, *self._below[token].tolist()]
            parents += [ROOT, *[above] * self._below.shape[1]]
        return [Branch(tokens, self.name, parents)] if tokens else []

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Keep what came back."""
        top = TopIds.of(outcome.top_ids)
        if len(outcome.tree) and top.logprobs is not None:
            n = len(outcome.tree) // self.ids.shape[1]
            here = slice(self.n_read, self.n_read + n)
            self.ids[here] = top.ids[1:].reshape(n, *self.ids.shape[1:])
            self.weights[here] = np.exp(top.logprobs[1:]).reshape(n, *self.ids.shape[1:])
            self.n_read += n

    def end(self, view: RequestView) -> None:
        """Nothing to drop."""

    def behind_pairs(self) -> tuple[IntArray, FloatArray]:
        """Ids and weights behind every token and each one below it, ``[vocab * n_below, k]``."""
        k = self.ids.shape[2]
        return self.ids[:, 1:].reshape(-1, k), self.weights[:, 1:].reshape(-1, k)
