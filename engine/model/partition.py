"""Assigns layers to stages by costs and bytes per layer.

The slowest stage sets the pace of a full pipeline, so its cost is minimized within the memory of the stages. Of the
best splits, the most even one is chosen (least sum of squares), and of equal ones the one with larger earlier stages.
Exact dynamic programming, O(stages x layers^2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from engine.errors import ConfigError
from engine.model.ranges import LayerRange

GIB = 1 << 30
_StageCost = Callable[[int, int, int], float]  # (stage, first layer, last layer + 1) -> cost


@dataclass(frozen=True, slots=True)
class ModelParts:
    """One quantity of every part of a model: seconds, bytes or parameters."""

    layers: tuple[float, ...]
    embed: float  # on the first stage
    head: float  # norm, head and verification: on the last stage
    shared: float = 0  # counted once instead of twice where one stage is first and last: a tied head's bytes
    n_ranks: int = 1  # of a stage; bytes are those of the first
    experts: tuple[float, ...] = ()  # of each layer, the part that belongs to its experts; (): no layer has experts

    def with_experts(self, fraction: float) -> ModelParts:
        """Return the quantity if layers had only this fraction of their experts."""
        pairs = zip(self.layers, self.experts, strict=True) if self.experts else ()
        layers = tuple(layer - (1 - fraction) * experts for layer, experts in pairs)
        return replace(self, layers=layers or self.layers, experts=tuple(fraction * one for one in self.experts))

    def of(self, first: int, last: int) -> float:
        """Sum the stage that runs layers ``first`` to ``last - 1``."""
        n_layers = len(self.layers)
        ends = (self.embed if first == 0 else 0) + (self.head if last == n_layers else 0)
        return sum(self.layers[first:last]) + ends - (self.shared if last - first == n_layers else 0)


def partition(
    costs: ModelParts, memory: ModelParts, n_stages: int, limits: Sequence[float] | None = None
) -> list[LayerRange]:
    """Return contiguous ranges of at least one layer, whose slowest stage is as fast as memory allows.

    Args:
        costs: seconds, or anything proportional to them.
        memory: bytes of weights and KV cache.
        n_stages: number of ranges.
        limits: bytes that each stage may take; None: no limits.

    Raises:
        ConfigError: there are more stages than layers, or no split fits into ``limits``; names the missing bytes.
    """
    n_layers = len(costs.layers)
    if not 1 <= n_stages <= n_layers:
        raise ConfigError(f"stages is {n_stages}; it must be 1 to {n_layers}, the model's number of layers")
    if limits is not None:
        _check_fit(memory, limits)
    cost, taken = _table(costs), _table(memory)

    def seconds(stage: int, first: int, last: int) -> float:
        fits = limits is None or taken(stage, first, last) <= limits[stage]
        return cost(stage, first, last) if fits else float("inf")

    worst = _best(n_layers, n_stages, seconds, max)[0]

    def square(stage: int, first: int, last: int) -> float:
        within = seconds(stage, first, last)
        return within * within if within <= worst else float("inf")

    bounds = _best(n_layers, n_stages, square, lambda left, right: left + right)[1]
    return [LayerRange(first, last, n_layers) for first, last in pairwise(bounds)]


def check_ranges(ranges: Sequence[LayerRange], memory: ModelParts, limits: Sequence[float]) -> None:
    """Raise ConfigError for the first stage of a given split that exceeds its limit."""
    for stage, layers in enumerate(ranges):
        taken = memory.of(layers.first, layers.last)
        if taken > limits[stage]:
            counts = ",".join(str(len(one)) for one in ranges)
            raise ConfigError(_lacking(f"with split {counts}", stage, memory.n_ranks, taken, limits[stage]))


def _check_fit(memory: ModelParts, limits: Sequence[float]) -> None:
    """Raise ConfigError if no split fits; describes the split with the least missing bytes."""
    taken, n_layers = _table(memory), len(memory.layers)
    lack, bounds = _best(n_layers, len(limits), lambda s, i, j: taken(s, i, j) - limits[s], max)
    if lack <= 0:
        return
    lacks = [taken(s, i, j) - limits[s] for s, (i, j) in enumerate(pairwise(bounds))]
    stage = lacks.index(max(lacks))
    counts = ",".join(str(j - i) for i, j in pairwise(bounds))
    needed, split = lacks[stage] + limits[stage], f"no split fits; with the one that lacks least, {counts}"
    raise ConfigError(_lacking(split, stage, memory.n_ranks, needed, limits[stage]))


def _lacking(split: str, stage: int, n_ranks: int, taken: float, limit: float) -> str:
    process = f"stage {stage}" if n_ranks == 1 else f"a rank of stage {stage}"
    return (
        f"stage_memory_gib is {limit / GIB:.4g} for {process}, but {split}, it takes {taken / GIB:.4g} GiB of "
        f"weights and KV cache: {(taken - limit) / GIB:.3g} GiB are missing; more stages, a smaller kv_gib or "
        f"quantization int8 or fp8 take less"
    )


def _table(parts: ModelParts) -> _StageCost:
    """``ModelParts.of`` in constant time."""
    sums = [0.0, *accumulate(parts.layers)]
    n_layers = len(parts.layers)

    def of(_stage: int, first: int, last: int) -> float:
        ends = (parts.embed if first == 0 else 0) + (parts.head if last == n_layers else 0)
        return sums[last] - sums[first] + ends - (parts.shared if last - first == n_layers else 0)

    return of


def _best(
    n_layers: int, n_stages: int, cost_of: _StageCost, join: Callable[[float, float], float]
) -> tuple[float, tuple[int, ...]]:
    """Return the least cost of all contiguous splits, joined over the stages, and the bounds of one such split.

    Goes from the last stage to the first, so of equal splits it returns the one with the larger first stages.
    """
    after: dict[int, tuple[float, tuple[int, ...]]] = {
        first: (cost_of(n_stages - 1, first, n_layers), (first, n_layers)) for first in range(n_layers)
    }
    for stage in range(n_stages - 2, -1, -1):
        before: dict[int, tuple[float, tuple[int, ...]]] = {}
        for first in range(stage, n_layers - (n_stages - stage - 1)):
            ends = range(n_layers - (n_stages - stage - 1), first, -1)
            joined = ((join(cost_of(stage, first, last), after[last][0]), last) for last in ends)
            value, last = min(joined, key=lambda pair: pair[0])
            before[first] = (value, (first, *after[last][1]))
        after = before
    return after[0]
