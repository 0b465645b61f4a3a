"""A stage in a Ray actor: loads its layers, then serves steps over its channel. Ray only starts and watches it."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import torch

from deployments.stage_worker import StageWorker
from engine.errors import TargetLostError
from engine.model.loader import load_shard, load_spec
from engine.model.shard import LayerRange
from engine.stage import Stage
from engine.target import TargetInfo, TargetOptions, positions, resolve_dtype


class StageActor:
    """Plain class; ``target_deployment`` wraps it in ``ray.remote``."""

    def __init__(self, options: TargetOptions, path: str, layers: LayerRange, info: TargetInfo, threads: int) -> None:
        torch.set_num_threads(threads)
        self._options = options
        self._device = torch.device(options.device)
        dtype = resolve_dtype(options.dtype, load_spec(Path(path)), options.device)
        shard = load_shard(Path(path), layers, dtype=dtype, device=self._device, n_positions=positions(info))
        self._stage = Stage(shard, info.n_blocks, info.block_size, options.reference)
        self._worker: StageWorker | None = None

    def listen(self, address: str, secret: bytes) -> str:
        """Open the stage's channel; returns the address peers reach it by."""
        self._worker = StageWorker(self._stage, self._device, address, secret)
        return self._worker.address

    def serve(self, next_address: str | None) -> int:
        """Start the loop, passing on to ``next_address`` (None: this is the last stage); returns the process id."""
        assert self._worker is not None, "listen comes before serve"
        self._worker.start(next_address)
        gc.collect()
        gc.freeze()  # what is loaded now stays: a full collection would stall a step for tens of milliseconds
        return os.getpid()

    def ping(self) -> int:
        """Sequences the stage holds; answers while the process lives.

        Raises:
            TargetLostError: the process lives, but its loop has ended.
        """
        if self._worker is not None and not self._worker.is_alive:
            raise TargetLostError("the stage's loop has ended; its log says why")
        return self._stage.n_sequences
