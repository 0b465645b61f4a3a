"""Who runs the rows of a drafter's network: its modules op by op, or what takes their place on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.drafter.networks.build import AnyNetwork
from engine.drafter.networks.dflash import DFlash
from engine.drafter.networks.layer import Attend
from engine.drafter.networks.pairs import PairNetwork
from engine.drafter.serving.base import upload_ids
from engine.drafter.serving.cache import DrafterCache, slots_of
from engine.drafter.serving.rows import DraftRows
from engine.drafter.spec import LayerShape


@dataclass(frozen=True, slots=True)
class NetworkCalls:
    """A network's layers as functions of rows."""

    shape: LayerShape
    widths: tuple[int, ...]  # of what ``run`` is given, ``[n, width]`` each
    run: Callable[[Sequence[Tensor], Tensor, Attend], Tensor]  # inputs, positions, attention -> outputs [n, hidden]
    # states [n, hidden] and positions -> keys and values of every layer; None: rows are run to be kept
    context: Callable[[Tensor, Tensor], list[tuple[Tensor, Tensor]]] | None = None
    block: int = 0  # rows that see each other, in every sequence that is run; 0: rows see what is before them


class Forwards(Protocol):
    """Runs rows and keeps what layers make of them in the drafter's cache."""

    def run(self, rows: Sequence[DraftRows], inputs: Sequence[Tensor]) -> Tensor:
        """Outputs ``[n, hidden]`` of the rows that are to be run, of all sequences; each has at least one.

        Args:
            rows: of the sequences.
            inputs: ``[n, width]`` each, of these rows.
        """

    def keep(self, rows: Sequence[DraftRows], states: Tensor) -> None:
        """Keys and values of committed positions that are no rows (DFlash), of states ``[n, hidden]``."""

    def warm_up(self) -> Iterator[str]:
        """Whatever the first forward would otherwise wait for; names it piece by piece."""


MakeForwards = Callable[[NetworkCalls, DrafterCache], Forwards]


class ModuleForwards:
    """Modules op by op. Implements ``Forwards``.

    Args:
        calls: of the network.
        cache: of its layers.
    """

    def __init__(self, calls: NetworkCalls, cache: DrafterCache) -> None:
        self._calls, self._cache = calls, cache

    def run(self, rows: Sequence[DraftRows], inputs: Sequence[Tensor]) -> Tensor:
        """A forward, its attention under masks."""
        prepared = self._cache.prepare(rows)
        return self._calls.run(inputs, prepared.positions, prepared.attend)

    def keep(self, rows: Sequence[DraftRows], states: Tensor) -> None:
        """Keys and values, put in their slots."""
        assert self._calls.context is not None, "this network keeps rows"
        positions = [position for its in rows for position in its.positions]
        placed, slots = upload_ids(states.device, positions, slots_of(rows).tolist())
        self._cache.write(slots, self._calls.context(states, placed))

    def warm_up(self) -> Iterator[str]:
        """Nothing."""
        return iter(())


def calls_of(network: AnyNetwork) -> NetworkCalls | None:
    """None: the network has no layers."""
    if isinstance(network, DFlash):
        block = network
        return NetworkCalls(
            block.shape,
            (block.shape.hidden_size,),
            lambda inputs, positions, attend: block(inputs[0], positions, attend),
            block.context,
            0 if block.spec.causal_block else block.n_slots(block.spec.n_drafts or 0),
        )
    if not isinstance(network, PairNetwork):
        return None
    pairs = network
    width = pairs.shape.hidden_size if pairs.spec.taps else pairs.spec.target_hidden_size
    return NetworkCalls(
        pairs.shape,
        (pairs.shape.hidden_size, width) if pairs.spec.reads_states else (pairs.shape.hidden_size,),
        lambda inputs, positions, attend: pairs(inputs[0], inputs[1] if len(inputs) > 1 else None, positions, attend),
    )
