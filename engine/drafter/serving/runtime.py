"""A trained drafter at work: its network, its cache, and what it knows of every sequence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from engine.drafter.checkpoint.tensors import DrafterCheckpoint
from engine.drafter.networks.base import TargetParts
from engine.drafter.networks.build import AnyNetwork, load_network
from engine.drafter.networks.dflash import DFlash
from engine.drafter.networks.medusa import Medusa
from engine.drafter.serving.base import DraftingNetwork
from engine.drafter.serving.blocks import BlockDrafting, HeadDrafting
from engine.drafter.serving.cache import DrafterCache
from engine.drafter.serving.committed import Committed, DraftedSequence, joined
from engine.drafter.serving.forwards import Forwards, MakeForwards, ModuleForwards, calls_of
from engine.drafter.serving.pairs import PairDrafting
from engine.drafter.serving.relay import Fused
from engine.drafter.settings import DrafterSettings, scratch_slots
from engine.drafter.spec import LayerShape
from engine.drafter.trees.choice import DraftVocabulary
from engine.kv.arena import ArenaMove, BlockTable
from engine.protocol import Branch

MOST_WAITING = 256  # rows of a sequence that wait for a draft to be asked for: 4 MiB of a 70B's states

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DrafterPlacement:
    """Where a drafter runs, and the cache it shares block numbers with."""

    n_blocks: int
    block_size: int  # tokens
    dtype: torch.dtype
    device: torch.device
    forwards: MakeForwards = ModuleForwards


class DraftRuntime:
    """Drafts for all sequences of a step together. One thread calls it.

    What is committed of sequences that want no draft is read later, many rows in one forward: when a draft is asked
    for, when ``MOST_WAITING`` rows wait, or when others may begin with a copy of them.

    Args:
        checkpoint: the drafter.
        target: what it uses of the target.
        place: where it runs.
        settings: how it drafts.

    Raises:
        ConfigError: the checkpoint lacks something, or contradicts itself.
    """

    def __init__(
        self, checkpoint: DrafterCheckpoint, target: TargetParts, place: DrafterPlacement, settings: DrafterSettings
    ) -> None:
        spec = checkpoint.spec
        tensors = {name: weight.to(place.device, place.dtype) for name, weight in checkpoint.tensors.items()}
        network = load_network(spec, tensors, target)
        self._fused = Fused(spec, tensors, place.dtype, place.device) if spec.taps else None
        calls = calls_of(network)
        self._cache = None if calls is None else _cache_of(calls.shape, place)
        self._forwards = None if calls is None or self._cache is None else place.forwards(calls, self._cache)
        self._drafting = _drafting_of(network, self._forwards, _vocabulary(checkpoint, place.device), settings)
        self._block_size, self._n_scratch = place.block_size, scratch_slots(spec, settings)
        self._sequences: dict[int, DraftedSequence] = {}

    def warm_up(self) -> Iterator[str]:
        """Whatever the first draft would otherwise wait for; names it piece by piece.

        What fails here costs as little as it does in a step.
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
        return self._fused is not None

    def finish(self, total: Tensor) -> Tensor:
        """States ``[n, width]`` of the relay's sums ``[n, ..]``."""
        assert self._fused is not None, "this drafter taps no layer"
        return self._fused.finish(total)

    def start(self, seq: int, table: BlockTable, n_copied: int) -> None:
        """A sequence begins, its first ``n_copied`` rows are copied."""
        self._sequences[seq] = DraftedSequence(table, n_copied)

    def end(self, seq: int) -> None:
        """Forget a sequence; harmless when it is not known. Its rows are complete: they may become another's prefix."""
        sequence = self._sequences.pop(seq, None)
        if sequence is not None:
            self.catch_up([sequence])

    def reset(self) -> None:
        """Forget all sequences."""
        self._sequences.clear()

    def of(self, seq: int) -> DraftedSequence | None:
        """A sequence that has begun."""
        return self._sequences.get(seq)

    def has_room(self, sequence: DraftedSequence, n_rows: int) -> bool:
        """Whether a sequence's blocks have slots for a draft behind ``n_rows`` rows."""
        return n_rows + self._n_scratch <= len(sequence.table.blocks) * self._block_size

    def copy(self, source: Tensor, target: Tensor, is_apart: bool) -> None:
        """Rows of prefixes, as ``KVArena.copy``."""
        if self._cache is not None:
            self.catch_up(self._sequences.values())
            self._cache.arena.copy(source, target, is_apart)

    def move_runs(self, runs: Iterable[ArenaMove]) -> None:
        """Rows of sequences that have other blocks now."""
        if self._cache is not None:
            self._cache.arena.move_runs(runs)

    def draft(self, committed: Sequence[Committed]) -> list[Branch | None]:
        """Learn what was committed of sequences that want a draft, and draft.

        A drafter that fails costs its sequences their drafts, from now on, and the step nothing.
        """
        self.catch_up([one.sequence for one in committed])
        sound = [one for one in committed if not one.sequence.has_failed]
        branches = iter(self._guarded(self._drafting.draft, sound) or ())
        return [None if one.sequence.has_failed else next(branches) for one in committed]

    def wait(self, committed: Sequence[Committed]) -> None:
        """Take up what was committed of sequences that want no draft, to learn it later."""
        if self._cache is None:
            return
        for one in committed:  # a copy, for a view would keep the states of all sequences
            one.sequence.waiting.append(replace(one, states=one.states.clone()))
        self.catch_up([one.sequence for one in committed if _n_waiting(one.sequence) > MOST_WAITING])

    @torch.inference_mode()
    def catch_up(self, sequences: Iterable[DraftedSequence]) -> None:
        """Read what waits of these sequences: about ``MOST_WAITING`` rows in a forward, or all of one sequence."""
        behind, n_rows = list[Committed](), 0
        for sequence in sequences:
            if n_rows and n_rows + _n_waiting(sequence) > MOST_WAITING:
                self._guarded(self._drafting.learn, behind)
                behind, n_rows = [], 0
            if sequence.waiting:
                n_rows += _n_waiting(sequence)
                behind.append(joined(sequence.waiting))
                sequence.waiting.clear()
        self._guarded(self._drafting.learn, behind)

    def _guarded(self, work: Callable[[Sequence[Committed]], T], committed: Sequence[Committed]) -> T | None:
        if not committed:
            return None
        try:
            return work(committed)
        except torch.AcceleratorError:
            raise  # the device cannot serve another step
        except Exception:
            logger.exception("the drafter failed; its sequences go on without drafts")
            for one in committed:
                one.sequence.has_failed = True
            return None


def _n_waiting(sequence: DraftedSequence) -> int:
    return sum(len(one.tokens) for one in sequence.waiting)


def _cache_of(shape: LayerShape, place: DrafterPlacement) -> DrafterCache:
    n_blocks = place.n_blocks + 1  # one more for rows that fill a bucket
    return DrafterCache(shape, n_blocks, place.block_size, place.dtype, place.device)


def _drafting_of(
    network: AnyNetwork, forwards: Forwards | None, vocabulary: DraftVocabulary | None, settings: DrafterSettings
) -> DraftingNetwork:
    if isinstance(network, Medusa):
        return HeadDrafting(network)
    assert forwards is not None, "a network with layers has rows"
    if isinstance(network, DFlash):
        return BlockDrafting(network, forwards, vocabulary)
    return PairDrafting(network, forwards, vocabulary, settings.depth, settings.beam)


def _vocabulary(checkpoint: DrafterCheckpoint, device: torch.device) -> DraftVocabulary | None:
    ids = checkpoint.draft_ids
    return None if ids is None else DraftVocabulary.of(ids.to(device), checkpoint.spec.vocab_size)
