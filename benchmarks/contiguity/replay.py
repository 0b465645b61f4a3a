"""The steps of a loaded cache, run by a real stage with the blocks that they had, and with a run for every sequence.

Both do the same arithmetic on the same rows; only where keys and values lie differs. Steps alternate.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from msgspec.structs import replace

from benchmarks.contiguity.load import Figures, SimulatedLoad
from engine.model.shard import ModelShard
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.stage.stage import Stage
from engine.step import SequenceStart, Step, Work
from engine.target_model.info import TargetInfo


@dataclass(slots=True)
class StepSeconds:
    """Processor seconds of steps in which sequences only decode, and of all."""

    decoding: list[float] = field(default_factory=list)
    every: list[float] = field(default_factory=list)


class _EmptyCache:
    """Steps as they would be if every sequence had the cache for itself."""

    def __init__(self, room: int) -> None:
        self._room = room  # blocks per sequence
        self._held: dict[int, tuple[int, int]] = {}  # sequence -> its place, its blocks
        self._free: list[int] = []
        self.n_places = 0

    def take(self, seq: int, n: int) -> list[int]:
        """The next ``n`` blocks of a sequence."""
        place, held = self._held.get(seq, (-1, 0))
        if place < 0:
            place = self._free.pop() if self._free else self.n_places
            self.n_places = max(self.n_places, place + 1)
        self._held[seq] = (place, held + n)
        return list(range(place * self._room + held, place * self._room + held + n))

    def step(self, step: Step) -> Step:
        """The same step with other blocks; texts are not copied from other sequences' places but from their own."""
        for seq in step.ends:
            if seq in self._held:  # else it was over before the first step of the replay
                self._free.append(self._held.pop(seq)[0])
        work = [replace(one, new_blocks=self._blocks(one), moved=False) for one in step.work]
        starts = [replace(one, source=[self._held[one.seq][0] * self._room] * len(one.source)) for one in step.starts]
        return replace(step, work=work, starts=starts)

    def _blocks(self, work: Work) -> list[int]:
        return self.take(work.seq, 0 if work.moved else len(work.new_blocks))


def measure(shard: ModelShard, info: TargetInfo, occupancy: float, sharing: bool, warm: int, n: int) -> Figures:
    """Replay ``n`` steps behind ``warm`` that are only scheduled; returns the load's figures and times.

    ``decoding_ratio`` is None when every step had rows of a prompt.
    """
    load = SimulatedLoad(info, occupancy, sharing)
    load.warm_up(warm)
    room = -(-(info.max_model_len + 64) // info.block_size)
    empty = _EmptyCache(room)
    held = {one.seq: load.scheduler.blocks.table(one.seq) for one in load.scheduler.running}
    held_apart = {seq: empty.take(seq, len(table)) for seq, table in held.items()}
    steps = [(step, empty.step(step)) for step in load.steps(n)]  # all now: they tell how many places there are
    loaded = Stage(shard, info.n_blocks, info.block_size)
    apart = Stage(shard, empty.n_places * room, info.block_size)
    _admit(loaded, held)
    _admit(apart, held_apart)
    times = (StepSeconds(), StepSeconds())
    for number, (step, step_apart) in enumerate(steps):
        both = [(loaded, step, times[0]), (apart, step_apart, times[1])]
        for stage, one, kept in both if number % 2 else both[::-1]:
            began = time.thread_time()
            stage.admit(one)
            stage.prepare(one)
            stage.verify(stage.forward(one, None))
            seconds = time.thread_time() - began
            kept.every.append(seconds)
            if all(work.tree is not None for work in one.work):
                kept.decoding.append(seconds)
    return {
        **load.counts.figures(),
        "every_ms": 1e3 * sum(times[0].every) / len(times[0].every),
        "every_ratio": sum(times[0].every) / sum(times[1].every),
        "decoding_ratio": sum(times[0].decoding) / sum(times[1].decoding) if times[0].decoding else None,
    }


def _admit(stage: Stage, held: dict[int, list[int]]) -> None:
    """Tell a stage of sequences as if their prompts had been read."""
    starts = [SequenceStart(seq, SamplingParams(), 1, Needs()) for seq in held]
    stage.admit(Step(-1, [Work(seq, 0, [], None, [], blocks) for seq, blocks in held.items()], starts))
