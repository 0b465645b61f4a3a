"""Runs a drafter's network over rows, with its keys and values in an arena.

The arena has the target's block numbers: a sequence's blocks hold its rows in both caches, and copying a prefix copies
both. Rows of committed tokens stay in their slots. Rows of a draft lie after them, and the next step overwrites them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from engine.attention.packed_step import PackedStep
from engine.drafter.networks.build import AnyNetwork
from engine.drafter.networks.dflash import DFlash
from engine.drafter.networks.layer import Attend
from engine.drafter.networks.pairs import PairNetwork
from engine.drafter.serving.rows import DraftRows, upload_ids
from engine.drafter.spec import LayerShape
from engine.kv.arena import KVArena
from engine.upload import Upload


@dataclass(frozen=True, slots=True)
class NetworkCalls:
    """A network's layers as functions of rows."""

    shape: LayerShape
    widths: tuple[int, ...]  # of the inputs of ``run``, ``[n, width]`` each
    run: Callable[[Sequence[Tensor], Tensor, Attend], Tensor]  # inputs, positions, attention -> outputs [n, hidden]
    # states [n, hidden] and positions -> keys and values of every layer; None: committed tokens are rows of ``run``
    context: Callable[[Tensor, Tensor], list[tuple[Tensor, Tensor]]] | None = None
    block: int = 0  # rows of a sequence that see each other; 0: rows see only earlier ones


class Forwards(Protocol):
    """Runs rows of all sequences and caches their keys and values."""

    def run(self, rows: Sequence[DraftRows], inputs: Sequence[Tensor]) -> Tensor:
        """Return outputs ``[n, hidden]`` of the rows that have not run yet, at least one a sequence.

        ``inputs`` are ``[n, width]`` each, of these rows.
        """

    def keep(self, rows: Sequence[DraftRows], states: Tensor) -> None:
        """Cache keys and values of committed states ``[n, hidden]`` that are no rows of a forward pass (DFlash)."""

    def warm_up(self) -> Iterator[str]:
        """Prepare what the first forward pass would wait for; yield a name for each part."""


MakeForwards = Callable[[NetworkCalls, KVArena], Forwards]


class ModuleForwards:
    """Runs the network's modules op by op, with attention under masks."""

    def __init__(self, calls: NetworkCalls, arena: KVArena) -> None:
        self._calls, self._arena = calls, arena
        self._device = arena.layer(0).keys.device

    def run(self, rows: Sequence[DraftRows], inputs: Sequence[Tensor]) -> Tensor:
        shape, upload = self._calls.shape, Upload(self._device)
        step, scale = PackedStep.of([one.segment() for one in rows], self._arena, upload), shape.head_dim**-0.5
        positions = upload.add([position for one in rows for position in one.positions])
        new, n_rows = None, sum(one.n_rows for one in rows)
        if any(one.n_run for one in rows):
            is_new = np.concatenate([np.arange(one.n_rows) >= one.n_run for one in rows])
            new, slots = upload.add(np.flatnonzero(is_new)), np.concatenate([one.slots for one in rows])
            step.write_start, step.write_rows = None, upload.add(slots[is_new])
        upload.send()

        def attend_rows(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            query, key, value = (part.transpose(0, 1).unsqueeze(0) for part in (query, key, value))
            store = step.write(layer, key, value)
            if new is None:
                return step.attend(query, store, scale, shape.window)[0]
            # Rows that ran before attend again with queries of zeros: attention needs no case of its own for them.
            spread = query.new_zeros(1, query.shape[1], n_rows, query.shape[3])
            spread.index_copy_(2, new.tensor, query)
            return step.attend(spread, store, scale, shape.window)[0].index_select(0, new.tensor)

        return self._calls.run(inputs, positions.tensor, attend_rows)

    def keep(self, rows: Sequence[DraftRows], states: Tensor) -> None:
        assert self._calls.context is not None, "this network runs committed tokens as rows"
        positions = [position for one in rows for position in one.positions]
        position_ids, slots = upload_ids(states.device, positions, np.concatenate([one.slots for one in rows]).tolist())
        write_rows(self._arena, slots, self._calls.context(states, position_ids))

    def warm_up(self) -> Iterator[str]:
        return iter(())


def write_rows(arena: KVArena, slots: Tensor, kept: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Write keys and values ``[n, n_kv_heads, head_dim]`` of every layer to arena rows, int64 ``[n]``."""
    for layer, (key, value) in enumerate(kept):
        store = arena.layer(layer)
        store.keys.index_copy_(0, slots, key)
        store.values.index_copy_(0, slots, value)


def network_calls(network: AnyNetwork) -> NetworkCalls | None:
    """Return a network's layers as functions; None if it has no layers."""
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
