"""What the target says behind every token of its vocabulary: successors for contexts that no text has shown yet.

Tables that learn from a request know a token's successors once the target has scored that token. Until then nothing but
*recent* tokens is known, and half of the nodes are guesses. One row per token of the vocabulary, read once per target
behind a beginning that says nothing, fills that gap: no text is needed, and none is in it, so that all requests may
share the rows. One forward of the target reads about a thousand of them, as the nodes of one tree.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.top_ids import TopIds
from engine.tree import ROOT, FloatArray, IntArray

FORMAT, VERSION = "spectra-vocabulary", "1"
TOP_K = 16


class VocabularyRows:
    """Successors of every token.

    Args:
        ids: best first, ``[vocab, k]`` int32.
        weights: their probabilities, ``[vocab, k]`` fp32.
    """

    __slots__ = ("ids", "weights")

    def __init__(self, ids: IntArray, weights: FloatArray) -> None:
        self.ids = ids
        self.weights = weights

    @classmethod
    def none(cls, k: int = TOP_K) -> VocabularyRows:
        """No token's."""
        return cls(np.empty((0, k), np.int32), np.empty((0, k), np.float32))

    def __len__(self) -> int:
        """Tokens."""
        return len(self.ids)

    def write(self, path: Path, model: str) -> None:
        """Write a file for the model of hash ``model``; a reader never sees half of one.

        Raises:
            ConfigError: it cannot be written there.
        """
        partial = path.with_name(path.name + ".partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            told = {"format": FORMAT, "version": VERSION, "model": model}
            save_file({"ids": self.ids, "weights": self.weights}, partial, told)
            partial.replace(path)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"vocabulary file {path} cannot be written: {error}") from error

    @classmethod
    def read(cls, path: Path, model: str, vocab_size: int) -> VocabularyRows:
        """The rows in a file, checked against the model that is to use them.

        Raises:
            ConfigError: it cannot be read, is no such file, or belongs to another version or model.
        """
        try:
            with safe_open(path, "numpy") as file:
                told, made = file.metadata() or {}, cls(file.get_tensor("ids"), file.get_tensor("weights"))
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"vocabulary file {path} cannot be read: {error}") from error
        found = told.get("format"), told.get("version"), told.get("model")
        if found != (FORMAT, VERSION, model) or made.ids.shape != made.weights.shape or len(made) != vocab_size:
            raise ConfigError(
                f"vocabulary file {path} is not of this version, or belongs to another model (hash {told.get('model')}"
                f", this one has {model}); 'spectra vocabulary read' makes one"
            )
        return made


class VocabularyReader:
    """A speculator that has the target score every token of the vocabulary as a child of the root.

    Args:
        vocab_size: of the target.
        top_k: successors that are kept of every token.
    """

    name = "vocabulary-reader"

    def __init__(self, vocab_size: int, top_k: int = TOP_K) -> None:
        k = min(top_k, vocab_size)
        self.needs = Needs(node_top_k=k, top_logprobs=True)
        self.rows = VocabularyRows(np.empty((vocab_size, k), np.int32), np.empty((vocab_size, k), np.float32))
        self.n_read = 0  # tokens whose successors are known, the first of the vocabulary

    def begin(self, view: RequestView) -> None:
        """Nothing to remember."""

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """The next tokens of the vocabulary; none once the target has decided about those that were proposed."""
        tokens = range(self.n_read, min(self.n_read + budget, len(self.rows)))
        return [Branch(tokens, self.name, [ROOT] * len(tokens))] if tokens else []

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Keep what came back."""
        top = TopIds.of(outcome.top_ids)
        if len(outcome.tree) and top.logprobs is not None:
            tokens = np.array(outcome.tree.tokens)
            self.rows.ids[tokens] = top.ids[1:]
            self.rows.weights[tokens] = np.exp(top.logprobs[1:])
            self.n_read += len(tokens)

    def end(self, view: RequestView) -> None:
        """Nothing to drop."""
