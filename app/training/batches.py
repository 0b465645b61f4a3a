"""Batches of texts with the target's states, by training step, and the positions from which training drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from app.training.examples import Example
from engine.drafter.spec import DrafterSpec
from engine.target_model.whole_texts import WholeTexts

POOL = 32  # batches whose texts are sorted by length together: little padding, yet nearly random batches


@dataclass(frozen=True, slots=True)
class PaddedTexts:
    """Texts, padded at their ends to one length, all on one device."""

    tokens: Tensor  # int64 [b, n]
    weights: Tensor  # float [b, n], of each token in the loss: 1 if the target wrote it, 0 in prompts and padding
    final: Tensor  # [b, n, target_hidden], outputs of the final norm
    tapped: Tensor | None = None  # [b, n, n_taps * target_hidden], concatenated outputs of the tapped layers

    @classmethod
    def joined(cls, tokens: Tensor, weights: Tensor, layers: Sequence[Tensor], device: torch.device) -> Self:
        """The texts on ``device`` with float32 states, of layers as ``layer_outputs`` returns them."""
        final, *tapped = (layer.to(device, torch.float32) for layer in layers)
        return cls(tokens.to(device), weights.to(device), final, torch.cat(tapped, dim=-1) if tapped else None)

    @property
    def n_tokens(self) -> int:
        """Tokens without padding; the last token of a text counts in the loss."""
        places = torch.arange(1, self.weights.shape[1] + 1, device=self.weights.device)
        return int(((self.weights > 0) * places).amax(1).sum())

    def states_for(self, spec: DrafterSpec) -> Tensor:
        if not spec.taps:
            return self.final
        assert self.tapped is not None, "the drafter's layers were not tapped"
        return self.tapped


ReadTexts = Callable[[Sequence[Example]], PaddedTexts]


@dataclass(frozen=True, slots=True)
class Roots:
    """The positions of last committed tokens; draft d of a root at position r, from 0, is of token r + 1 + d.

    The order of roots is random, with those that count first.
    """

    at: Tensor  # int64 [b, m], at least 1: a draft needs the state before its root
    counted: Tensor  # bool [b, m]; False: the text has fewer than m roots


def choose_roots(texts: PaddedTexts, n_roots: int, generator: torch.Generator | None = None) -> Roots:
    """At most ``n_roots`` different random roots of each text, among the positions whose next token counts."""
    eligible = torch.zeros_like(texts.weights, dtype=torch.bool)
    eligible[:, 1:-1] = texts.weights[:, 2:] > 0
    drawn = torch.rand(eligible.shape, generator=generator).to(eligible.device)
    n_roots = min(n_roots, max(1, int(eligible.sum(1).max())))
    order = drawn.masked_fill(~eligible, -1.0).topk(n_roots, dim=1).indices
    return Roots(order.clamp(min=1), eligible.gather(1, order))


def take(values: Tensor, at: Tensor) -> Tensor:
    """``values`` ``[b, n, ...]`` at positions ``[b, m]``; the last value for positions after the end."""
    at = at.clamp(max=values.shape[1] - 1)
    return values[torch.arange(len(values), device=at.device)[:, None], at]


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

    def _shuffled(self, epoch: int) -> list[list[int]]:
        """The epoch's batches, as indices of texts."""
        random = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        order = torch.randperm(len(self._examples), generator=random).tolist()
        batches: list[list[int]] = []
        for begin in range(0, len(order), self._batch_size * POOL):
            pool = sorted(order[begin : begin + self._batch_size * POOL], key=lambda i: len(self._examples[i].tokens))
            batches += [pool[i : i + self._batch_size] for i in range(0, len(pool), self._batch_size)]
        return [batches[i] for i in torch.randperm(len(batches), generator=random).tolist()]


@torch.no_grad()
def layer_outputs(model: WholeTexts, taps: Sequence[int], tokens: Tensor) -> list[Tensor]:
    """The target's outputs ``[b, n, hidden]`` of the final norm and of each tapped layer, on its last device."""
    hidden, tapped = model.states(tokens, taps)
    return [model.shards[-1].norm(hidden), *tapped]


def compute_states(model: WholeTexts, taps: Sequence[int], examples: Sequence[Example]) -> PaddedTexts:
    tokens, weights = pad_texts(examples)
    return PaddedTexts.joined(tokens, weights, layer_outputs(model, taps, tokens), model.shards[-1].device)


def pad_texts(examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """Tokens and weights of ``PaddedTexts``, on the CPU."""
    shape = len(examples), max(len(example.tokens) for example in examples)
    tokens, weights = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape)
    for row, example in enumerate(examples):
        end = len(example.tokens)
        tokens[row, :end] = torch.tensor(example.tokens)
        weights[row, example.first : end] = 1
    return tokens, weights


def in_batches(read: ReadTexts, examples: Sequence[Example], batch_size: int) -> Iterator[PaddedTexts]:
    """Reads every text once, texts of similar length together."""
    ranked = sorted(examples, key=lambda example: len(example.tokens))
    for begin in range(0, len(ranked), batch_size):
        yield read(ranked[begin : begin + batch_size])
