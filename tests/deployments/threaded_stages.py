"""The stages of a pipeline, and their tensor-parallel ranks, in threads of the test."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from deployments.pipeline.endpoints import Endpoints
from deployments.stage.worker import StageWorker
from engine.model.exchange import Ranks
from engine.model.loader import load_shard
from engine.model.ranges import split_layers
from engine.model.share import RankShare
from engine.parallel.leader import ParallelStage
from engine.stage.base import StageLike
from engine.stage.stage import Stage
from engine.target_model.info import TargetInfo, positions
from engine.target_model.loading import grammars_of

CPU = torch.device("cpu")
SECRET = b"k" * 32
_NUMBERS = itertools.count()  # of workers


class ThreadedStages:
    """The stages of one pipeline, each in threads of its own; ``kinds`` has the class of each, or a function.

    ``workers`` are the leaders of stages, ``followers`` their other tensor-parallel ranks.
    """

    def __init__(
        self,
        path: Path,
        info: TargetInfo,
        n: int,
        kinds: Sequence[type[Stage]],
        transport: str = "auto",
        n_ranks: int = 1,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="st-")
        self._path, self._info, self._transport, self._n_ranks = path, info, transport, n_ranks
        self._ranges, self._kinds = split_layers(info.spec.n_layers, n), kinds
        self.workers = [self._make_worker(i, 0) for i in range(n)]
        self.followers = [[self._make_worker(i, rank) for rank in range(1, n_ranks)] for i in range(n)]
        self.connect()
        self.endpoints = Endpoints(self.workers[0].address, self.workers[-1].address, SECRET, info)

    def _make_worker(self, i: int, rank: int) -> StageWorker:
        path, info = self._path, self._info
        ranks = Ranks(RankShare(rank, self._n_ranks), info.spec) if self._n_ranks > 1 else None
        shard = load_shard(
            path, self._ranges[i], dtype=torch.float32, device=CPU, n_positions=positions(info), ranks=ranks
        )
        kind = self._kinds[i]
        more = {"grammars": grammars_of(path, info.spec)} if isinstance(kind, type) else {}  # functions know theirs
        stage: StageLike = kind(shard, info.n_blocks, info.block_size, **more)
        if ranks is not None and rank == 0:
            assert isinstance(stage, Stage)
            stage = ParallelStage(stage)
        address = f"unix:{self._folder.name}/{i}-{rank}-{next(_NUMBERS)}"
        return StageWorker(stage, CPU, address, SECRET, self._transport)

    def connect(self) -> None:
        """Start the workers, or let them connect to their present neighbours, as the owner of a pipeline does."""
        following = [worker.address for worker in self.workers[1:]] + [None]
        for worker, others, address in zip(self.workers, self.followers, following, strict=True):
            for other in others:
                other.start(None)
            worker.start(address, ranks=[other.address for other in others])

    def replace_rank(self, stage: int, rank: int) -> None:
        """Replace a rank whose worker was closed; the others keep their weights."""
        self.followers[stage][rank - 1] = self._make_worker(stage, rank)
        self.connect()

    @property
    def n_sequences(self) -> int:
        """Sequences any process still holds state of."""
        return max(worker._stage.n_sequences for worker in self._all)

    @property
    def _all(self) -> list[StageWorker]:
        return [*self.workers, *(other for others in self.followers for other in others)]

    def close(self) -> None:
        for worker in self._all:
            worker.close()
        self._folder.cleanup()
