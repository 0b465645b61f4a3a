"""Batches of texts by training step, and what the target computes on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from app.training.examples import Example
from app.training.texts import PaddedTexts
from engine.target_model.whole_texts import WholeTexts

POOL = 32  # batches whose texts are sorted by length together: little padding, yet nearly random batches


class EpochBatches:
    """The batches of a training by step; each epoch has every text once, in an order of its own."""

    def __init__(self, examples: Sequence[Example], batch_size: int, seed: int) -> None:
        self._examples, self._batch_size, self._seed = examples, batch_size, seed
        self.n_batches = -(-len(examples) // batch_size)  # of an epoch
        self._epoch, self._order = 0, self._shuffled(0)

    def at(self, step: int) -> list[Example]:
        """The texts of a step, from 0."""
        epoch, place = divmod(step, self.n_batches)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._shuffled(epoch)
        return [self._examples[i] for i in self._order[place]]

    def n_tokens(self, n_steps: int) -> int:
        """Tokens of the texts of the first ``n_steps`` batches, prompts included."""
        epochs = n_steps // self.n_batches
        last = [example for step in range(epochs * self.n_batches, n_steps) for example in self.at(step)]
        return epochs * sum(len(one.tokens) for one in self._examples) + sum(len(one.tokens) for one in last)

    def _shuffled(self, epoch: int) -> list[list[int]]:
        """The epoch's batches, as indices of texts."""
        random = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        order = torch.randperm(len(self._examples), generator=random).tolist()
        batches: list[list[int]] = []
        for begin in range(0, len(order), self._batch_size * POOL):
            pool = sorted(order[begin : begin + self._batch_size * POOL], key=lambda i: len(self._examples[i].tokens))
            batches += [pool[i : i + self._batch_size] for i in range(0, len(pool), self._batch_size)]
        return [batches[i] for i in torch.randperm(len(batches), generator=random).tolist()]


class Capture:
    """Reads batches of texts through the target, whose states would take far more disk than the texts."""

    def __init__(self, model: WholeTexts, taps: Sequence[int]) -> None:
        self._model, self._taps = model, taps

    @torch.no_grad()
    def read(self, examples: Sequence[Example]) -> PaddedTexts:
        """The texts with float32 states, padded to the longest, on the target's last device."""
        last, shape = self._model.shards[-1], (len(examples), max(len(example.tokens) for example in examples))
        tokens, weights = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape)
        for row, example in enumerate(examples):
            end = len(example.tokens)
            tokens[row, :end] = torch.tensor(example.tokens)
            weights[row, example.first : end] = 1
        hidden, tapped = self._model.states(tokens, self._taps)
        joined = torch.cat(tapped, dim=-1).float() if tapped else None
        return PaddedTexts(tokens.to(last.device), weights.to(last.device), last.norm(hidden).float(), joined)

    def in_batches(self, examples: Sequence[Example], batch_size: int) -> Iterator[PaddedTexts]:
        """Reads every text once, texts of similar length together."""
        ranked = sorted(examples, key=lambda example: len(example.tokens))
        for begin in range(0, len(ranked), batch_size):
            yield self.read(ranked[begin : begin + batch_size])
