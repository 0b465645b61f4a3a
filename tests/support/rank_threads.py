"""Stages of several tensor-parallel ranks in one process: every rank but the leader runs in a thread."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from collections.abc import Sequence
from pathlib import Path

import torch

from engine.drafter.checkpoint.tensors import DrafterCheckpoint
from engine.grammar.compiler import Grammars
from engine.model.exchange import Ranks
from engine.model.loader import load_shard, load_spec
from engine.model.ranges import LayerRange, split_layers
from engine.model.share import RankShare
from engine.parallel.commands import PipeLink
from engine.parallel.follower import follow
from engine.parallel.leader import ParallelStage
from engine.stage.base import StageLike
from engine.stage.stage import Stage
from engine.target_model.drafter import describe_drafter, drafter_part, embeds_with_target
from engine.target_model.info import TargetInfo
from engine.target_model.local import LocalTarget
from tests.support.served_drafters import SETTINGS
from tests.support.tiny_models import saved_model
from tests.support.waiting import wait_until


class ThreadedTarget(LocalTarget):
    """A target whose ranks are in this process.

    Args:
        ranks: of every stage, the leader first.
    """

    def __init__(self, info: TargetInfo, stages: Sequence[StageLike], ranks: Sequence[Sequence[Stage]]) -> None:
        super().__init__(info, stages)
        self.ranks = ranks

    @property
    def n_sequences(self) -> int:
        """Sequences of any rank, once all ranks have admitted the last step."""
        wait_until(lambda: all(len({one.n_sequences for one in ranks}) == 1 for ranks in self.ranks))
        return super().n_sequences

    def close(self) -> None:
        """Disconnect all ranks, which ends their threads and process groups."""
        for stage in self._stages:
            if isinstance(stage, ParallelStage):
                stage.disconnect()


def connect_threads(followers: Sequence[Stage]) -> list[PipeLink]:
    """Run each follower in a thread, and return the leader's links to them; a closed link ends its thread."""
    links = []
    for stage in followers:
        ours, theirs = multiprocessing.Pipe()
        threading.Thread(target=_follow, args=(stage, PipeLink(theirs)), daemon=True).start()
        links.append(PipeLink(ours))
    return links


def _follow(stage: Stage, link: PipeLink) -> None:
    with contextlib.suppress(EOFError, OSError):
        follow(stage, link)


def connected_stage(ranks: Sequence[Stage], backend: str = "") -> StageLike:
    """A stage of these ranks, the leader first; with a process group if ``backend`` names one."""
    leader, *followers = ranks
    if not followers:
        return leader
    stage = ParallelStage(leader)
    stage.connect(connect_threads(followers), backend)
    return stage


def threaded_target(
    family: str | Path,
    size: int,
    stages: int = 1,
    backend: str = "",
    *,
    drafter: DrafterCheckpoint | None = None,
    grammars: Grammars | None = None,
    n_blocks: int = 200,
    block_size: int = 16,
    **load: object,
) -> ThreadedTarget:
    """The tiny model of a family, or a checkpoint, in fp32; ``load`` goes to ``load_shard``."""
    path = saved_model(family) if isinstance(family, str) else family
    spec = load_spec(path)
    described = None if drafter is None else describe_drafter(drafter, SETTINGS, torch.float32)
    info = TargetInfo(spec, n_blocks, block_size, 500, drafter=described)

    def make(share: RankShare, layers: LayerRange) -> Stage:
        own = drafter if share.rank == 0 else None
        options = {
            "dtype": torch.float32,
            "device": torch.device("cpu"),
            "n_positions": 600,
            "embeds": own is not None and layers.is_last and embeds_with_target(own.spec),
            "ranks": Ranks(share, spec) if size > 1 else None,
        }
        shard = load_shard(path, layers, **options | load)  # type: ignore[arg-type]
        return Stage(shard, n_blocks, block_size, drafter_part(own, SETTINGS, shard, info), grammars)

    ranks = [
        [make(RankShare(rank, size), layers) for rank in range(size)] for layers in split_layers(spec.n_layers, stages)
    ]
    return ThreadedTarget(info, [connected_stage(one, backend) for one in ranks], ranks)
