"""Serves a trained drafter on the last stage: reads what steps commit, and drafts trees.

Committed tokens become rows of the drafter's cache, the network runs them, logits of the last rows become choices, and
choices grow into trees. Drafters differ in their rows and in the number of forward passes a draft: see ``pairs`` and
``blocks``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from engine.drafter.checkpoint.tensors import DrafterCheckpoint
from engine.drafter.networks.base import TargetParts
from engine.drafter.networks.build import AnyNetwork, load_network
from engine.drafter.networks.dflash import DFlash
from engine.drafter.networks.medusa import Medusa
from engine.drafter.serving.blocks import BlockDrafting, HeadDrafting
from engine.drafter.serving.forwards import Forwards, MakeForwards, ModuleForwards, network_calls
from engine.drafter.serving.pairs import PairDrafting
from engine.drafter.serving.relay import finish_taps
from engine.drafter.serving.rows import CommittedTokens, DraftedSequence, join_steps
from engine.drafter.settings import DrafterSettings, scratch_slots
from engine.drafter.trees.choice import DraftVocabulary
from engine.kv.arena import ArenaMove, BlockTable, KVArena
from engine.protocol import Branch

MOST_WAITING = 256  # rows of a sequence that wait to be read: 4 MiB of a 70B's states

T = TypeVar("T")

logger = logging.getLogger(__name__)


class DraftNetwork(Protocol):
    """The rows and drafts of one family of networks. One thread calls it."""

    def learn(self, committed: Sequence[CommittedTokens]) -> None:
        """Cache the rows of committed tokens, without a draft."""

    def draft(self, committed: Sequence[CommittedTokens]) -> list[Branch | None]:
        """Cache the rows of committed tokens and return a draft for each sequence; all have requests."""


@dataclass(frozen=True, slots=True)
class DrafterPlacement:
    """Where a drafter runs, and the cache whose block numbers it shares."""

    n_blocks: int
    block_size: int  # tokens
    dtype: torch.dtype
    device: torch.device
    forwards: MakeForwards = ModuleForwards


class DraftRuntime:
    """Drafts for all sequences of a step together. One thread calls it.

    Committed tokens of sequences without a draft request wait, to be read many rows in one forward pass: before a
    draft, when ``MOST_WAITING`` rows wait, or before others copy them.

    Args:
        checkpoint: the drafter.
        target: the parts of the target that it uses.
        place: where it runs.
        settings: how it drafts.

    Raises:
        ConfigError: the checkpoint lacks something, or contradicts itself.
    """

    def __init__(
        self, checkpoint: DrafterCheckpoint, target: TargetParts, place: DrafterPlacement, settings: DrafterSettings
    ) -> None:
        self._spec, self._place = checkpoint.spec, place
        tensors = {name: weight.to(place.device, place.dtype) for name, weight in checkpoint.tensors.items()}
        network = load_network(self._spec, tensors, target)
        self._fc_bias = tensors["fc.bias"].float() if self._spec.taps and self._spec.fc_bias else None
        self._arena: KVArena | None = None
        self._forwards: Forwards | None = None
        if calls := network_calls(network):
            shape, n_blocks = calls.shape, place.n_blocks + 1  # one more for rows that fill a bucket
            sizes = place.block_size, shape.n_kv_heads, shape.head_dim
            self._arena = KVArena(shape.n_layers, n_blocks, *sizes, place.dtype, place.device)
            self._forwards = place.forwards(calls, self._arena)
        ids = checkpoint.draft_ids
        vocabulary = None if ids is None else DraftVocabulary.of(ids.to(place.device), self._spec.vocab_size)
        self._drafting = _make_drafting(network, self._forwards, vocabulary, settings)
        self._n_scratch = scratch_slots(self._spec, settings)
        self._sequences: dict[int, DraftedSequence] = {}

    def warm_up(self) -> Iterator[str]:
        """Prepare what the first draft would wait for; yield a name for each part.

        A failure leaves the drafter as it is: it costs no more than a failure in a step.
        """
        try:
            yield from () if self._forwards is None else self._forwards.warm_up()
        except torch.AcceleratorError:
            raise  # the device cannot serve a step
        except Exception:
            logger.exception("the drafter failed to warm up")

    @property
    def reads_taps(self) -> bool:
        """Whether it reads the relayed sum of tapped layers, and not the final norm's outputs."""
        return bool(self._spec.taps)

    def finish(self, total: Tensor) -> Tensor:
        """Return states ``[n, width]`` of the relay's sums."""
        return finish_taps(self._spec, total, self._fc_bias, self._place.dtype)

    def start(self, seq: int, table: BlockTable, n_copied: int) -> None:
        """Start a sequence, whose first ``n_copied`` rows are copied."""
        self._sequences[seq] = DraftedSequence(table, n_copied)

    def end(self, seq: int) -> None:
        """Forget a sequence, if it is known. Its rows are read first: they may become another's prefix."""
        sequence = self._sequences.pop(seq, None)
        if sequence is not None:
            self.catch_up([sequence])

    def reset(self) -> None:
        """Forget all sequences."""
        self._sequences.clear()

    def of(self, seq: int) -> DraftedSequence | None:
        """Return a sequence that has started."""
        return self._sequences.get(seq)

    def has_room(self, sequence: DraftedSequence, n_rows: int) -> bool:
        """Return whether the sequence's blocks have slots for a draft after ``n_rows`` rows."""
        return n_rows + self._n_scratch <= len(sequence.table.blocks) * self._place.block_size

    def copy(self, source: Tensor, target: Tensor, is_apart: bool) -> None:
        """Copy rows of prefixes, as ``KVArena.copy``."""
        if self._arena is not None:
            self.catch_up(self._sequences.values())
            self._arena.copy(source, target, is_apart)

    def move_runs(self, runs: Iterable[ArenaMove]) -> None:
        """Move rows of sequences whose blocks changed."""
        if self._arena is not None:
            self._arena.move_runs(runs)

    def draft(self, committed: Sequence[CommittedTokens]) -> list[Branch | None]:
        """Read committed tokens of sequences with a draft request; return their drafts.

        If the drafter fails, its sequences get no draft from now on, and the step continues.
        """
        self.catch_up([one.sequence for one in committed])
        sound = [one for one in committed if not one.sequence.has_failed]
        branches = iter(self._guard(self._drafting.draft, sound) or ())
        return [None if one.sequence.has_failed else next(branches) for one in committed]

    def wait(self, committed: Sequence[CommittedTokens]) -> None:
        """Keep committed tokens of sequences without a draft request, to read them later."""
        if self._arena is None:
            return
        for one in committed:  # a view would keep the states of all sequences
            one.sequence.waiting.append(replace(one, states=one.states.clone()))
        self.catch_up([one.sequence for one in committed if _n_waiting(one.sequence) > MOST_WAITING])

    @torch.inference_mode()
    def catch_up(self, sequences: Iterable[DraftedSequence]) -> None:
        """Read all waiting tokens of these sequences, about ``MOST_WAITING`` rows or one sequence a forward pass."""
        steps, n_rows = list[CommittedTokens](), 0
        for sequence in sequences:
            if n_rows and n_rows + _n_waiting(sequence) > MOST_WAITING:
                self._guard(self._drafting.learn, steps)
                steps, n_rows = [], 0
            if sequence.waiting:
                n_rows += _n_waiting(sequence)
                steps.append(join_steps(sequence.waiting))
                sequence.waiting.clear()
        self._guard(self._drafting.learn, steps)

    def _guard(self, work: Callable[[Sequence[CommittedTokens]], T], committed: Sequence[CommittedTokens]) -> T | None:
        if not committed:
            return None
        try:
            return work(committed)
        except torch.AcceleratorError:
            raise  # the device cannot serve another step
        except Exception:
            logger.exception("the drafter failed; its sequences continue without drafts")
            for one in committed:
                one.sequence.has_failed = True
            return None


def _n_waiting(sequence: DraftedSequence) -> int:
    return sum(len(one.tokens) for one in sequence.waiting)


def _make_drafting(
    network: AnyNetwork, forwards: Forwards | None, vocabulary: DraftVocabulary | None, settings: DrafterSettings
) -> DraftNetwork:
    if isinstance(network, Medusa):
        return HeadDrafting(network, vocabulary)
    assert forwards is not None, "a network with layers has rows"
    if isinstance(network, DFlash):
        return BlockDrafting(network, forwards, vocabulary)
    return PairDrafting(network, forwards, vocabulary, settings)
