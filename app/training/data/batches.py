"""Endless shuffled batches of texts of about one length each, and batches of all texts once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from app.training.data.capture import Capture
from app.training.data.examples import Example
from app.training.texts import PaddedTexts
from engine.errors import ConfigError

POOL = 32  # batches whose texts are sorted by length together: little padding, and chance decides nearly all


class TextStream:
    """Every text once per epoch; a ``BatchStream`` of the training loop."""

    def __init__(self, examples: Sequence[Example], capture: Capture, batch_size: int, seed: int) -> None:
        self._examples, self._capture, self._batch_size, self._seed = examples, capture, batch_size, seed
        self._epoch, self._next, self.n_tokens = 0, 0, 0  # tokens handed out, prompts among them
        self._digest = digest(examples)
        self._order = self._shuffled()

    def batch(self) -> PaddedTexts:
        """The next one."""
        if self._next == len(self._order):
            self._epoch, self._next = self._epoch + 1, 0
            self._order = self._shuffled()
        chosen = [self._examples[i] for i in self._order[self._next]]
        self._next += 1
        self.n_tokens += sum(len(example.tokens) for example in chosen)
        return self._capture.read(chosen)

    @property
    def epochs(self) -> float:
        """Passes over all texts so far."""
        return self._epoch + self._next / len(self._order)

    def state(self) -> dict[str, Any]:
        """Where the stream is."""
        return {"epoch": self._epoch, "next": self._next, "tokens": self.n_tokens, "texts": self._digest}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken.

        Raises:
            ConfigError: it was taken of other texts.
        """
        if state["texts"] != self._digest:
            raise ConfigError("the texts are not those that the training began with: give the same, or --restart it")
        self._epoch, self._next, self.n_tokens = state["epoch"], state["next"], state["tokens"]
        self._order = self._shuffled()

    def _shuffled(self) -> list[list[int]]:
        """The epoch's batches, as indices."""
        random = torch.Generator().manual_seed(self._seed * 1_000_003 + self._epoch)
        order = torch.randperm(len(self._examples), generator=random).tolist()
        batches: list[list[int]] = []
        for begin in range(0, len(order), self._batch_size * POOL):
            pool = sorted(order[begin : begin + self._batch_size * POOL], key=lambda i: len(self._examples[i].tokens))
            batches += [pool[i : i + self._batch_size] for i in range(0, len(pool), self._batch_size)]
        return [batches[i] for i in torch.randperm(len(batches), generator=random).tolist()]


def in_batches(examples: Sequence[Example], capture: Capture, batch_size: int) -> Iterator[PaddedTexts]:
    """All texts once, those of one length together."""
    ranked = sorted(examples, key=lambda example: len(example.tokens))
    for begin in range(0, len(ranked), batch_size):
        yield capture.read(ranked[begin : begin + batch_size])


def digest(examples: Sequence[Example]) -> str:
    """A hash of texts in their order."""
    found = hashlib.sha256()
    for example in examples:
        found.update(repr((example.first, list(example.tokens))).encode())
    return found.hexdigest()[:16]
