"""Runs all stages of a target in this process, one after the other.

A pipeline over channels (``deployments``) has the same ``step``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.drafter.part import NO_DRAFTER, DrafterPart
from engine.errors import ConfigError
from engine.grammar.compiler import Grammars
from engine.model.shard import ModelShard
from engine.stage.artefacts import AttentionRows, attach_attention
from engine.stage.base import Activations, StageLike
from engine.stage.stage import Stage
from engine.step import Step, StepResult
from engine.target_model.info import TargetInfo
from engine.target_model.loading import describe_target, grammars_of, load_parts
from engine.target_model.local_ranks import load_ranks
from engine.target_model.memory import room_of, with_cache
from engine.target_model.numerics import executors_of, with_numerics
from engine.target_model.options import TargetOptions
from engine.target_model.split import stage_ranges

if TYPE_CHECKING:  # its kernels need Triton
    from engine.cuda.executor import Executor


class LocalTarget:
    """A target whose stages live in this process."""

    def __init__(self, info: TargetInfo, stages: Sequence[StageLike]) -> None:
        self.info, self._stages = info, stages

    @classmethod
    def of_shards(
        cls,
        info: TargetInfo,
        shards: Sequence[ModelShard],
        drafter: Sequence[DrafterPart] = (),
        grammars: Grammars | None = None,
        executors: Sequence[Executor | None] = (),
    ) -> LocalTarget:
        """Return a target of these shards, one for each stage, with their parts of a drafter and their executors."""
        parts = drafter or [NO_DRAFTER] * len(shards)
        run = executors or [None] * len(shards)
        stages = [
            Stage(shard, info.n_blocks, info.block_size, part, grammars, executor)
            for shard, part, executor in zip(shards, parts, run, strict=True)
        ]
        return cls(info, stages)

    @classmethod
    def load(cls, options: TargetOptions, path: Path) -> LocalTarget:
        """Load a checkpoint directory. The other tensor-parallel ranks of its one stage are processes of this machine.

        Raises:
            UnsupportedModelError: the checkpoint cannot be run.
            ConfigError: an option is wrong.
        """
        options = with_numerics(options, path)
        rooms = [] if options.kv_bytes is not None else [room_of(options.device) - options.beside]
        rooms *= options.tensor_parallel
        options = with_cache(options, path, rooms)
        info = describe_target(options, path)
        ranges = stage_ranges(options, path, info)
        if options.tensor_parallel > 1:
            if len(ranges) > 1:
                raise ConfigError(
                    f"stages is {len(ranges)}; with tensor_parallel above 1 it must be 1 without a server"
                )
            return cls(info, [load_ranks(options, path, ranges[0], info)])
        shards, drafter = zip(*load_parts(options, path, ranges, info), strict=True)
        executors = executors_of(options, shards, drafter)
        target = cls.of_shards(info, shards, drafter, grammars_of(path, info.spec), executors)
        for stage in target._stages:
            assert isinstance(stage, Stage), "they were made of shards"
            stage.warm_up()
        return target

    @property
    def n_sequences(self) -> int:
        """Sequences of which any stage has state."""
        return max(stage.n_sequences for stage in self._stages)

    def step(self, step: Step) -> StepResult:
        """Run one micro-batch through all stages."""
        began = time.perf_counter()
        for stage in self._stages:
            stage.admit(step)
        if not step.work:
            return StepResult(step.step_id, [], time.perf_counter() - began)
        activations: Activations | None = None
        for stage in self._stages:
            stage.prepare(step)
            activations = stage.forward(step, activations)
        assert activations is not None
        results = self._stages[-1].verify(activations)
        rows: AttentionRows = {}
        for stage in self._stages:
            rows |= stage.attention(results)
        if rows:
            results = [attach_attention(result, rows) for result in results]
        return StepResult(step.step_id, results, time.perf_counter() - began)
