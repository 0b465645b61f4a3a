"""Stages of several tensor-parallel ranks in one process: every rank but the leader runs in a thread."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from collections.abc import Callable, Sequence

import torch

from engine.model.exchange import Ranks
from engine.model.loader import load_shard, load_spec
from engine.model.ranges import LayerRange, split_layers
from engine.model.share import RankShare
from engine.parallel.commands import PipeLink
from engine.parallel.follower import follow
from engine.parallel.leader import ParallelStage
from engine.stage.base import StageLike
from engine.stage.stage import Stage
from engine.target_model.info import TargetInfo
from engine.target_model.local import LocalTarget
from tests.support.tiny_models import saved_model

MakeRank = Callable[[RankShare, LayerRange], Stage]


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


def threaded_stage(make: MakeRank, layers: LayerRange, size: int, backend: str = "") -> StageLike:
    """A connected stage of ``size`` ranks, which ``make`` makes; with a process group if ``backend`` names one."""
    leader, *followers = (make(RankShare(rank, size), layers) for rank in range(size))
    if not followers:
        return leader
    stage = ParallelStage(leader)
    stage.connect(connect_threads(followers), backend)
    return stage


def threaded_target(family: str, size: int, stages: int = 1, backend: str = "", **load: object) -> LocalTarget:
    """The tiny model of a family in fp32; ``load`` goes to ``load_shard``."""
    path = saved_model(family)
    spec = load_spec(path)
    info = TargetInfo(spec, 200, 16, 500)

    def make(share: RankShare, layers: LayerRange) -> Stage:
        options = {"dtype": torch.float32, "device": torch.device("cpu"), "n_positions": 600} | load
        shard = load_shard(path, layers, ranks=Ranks(share, spec) if size > 1 else None, **options)  # type: ignore[arg-type]
        return Stage(shard, info.n_blocks, info.block_size)

    ranges = split_layers(spec.n_layers, stages)
    return LocalTarget(info, [threaded_stage(make, layers, size, backend) for layers in ranges])
