"""Simulated stages, each in a process of its own as in a cluster, without Ray."""

from __future__ import annotations

import gc
import multiprocessing
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

import torch

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from deployments.pipeline.endpoints import Endpoints
from deployments.stage.worker import StageWorker
from engine.model.ranges import split_layers
from engine.simulated.profile import PipelineProfile, Simulation
from engine.simulated.stage import SimulatedStage
from engine.simulated.timing import Lateness
from engine.target_model.loading import describe_target, load_stage
from engine.target_model.options import GIB, TargetOptions

SECRET = b"s" * 32
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["benchmarks.pipeline_scheduling.stages"])


@dataclass(frozen=True, slots=True)
class StageReport:
    """What a stage did so far."""

    busy_s: float  # seconds slept as the profile says
    lateness: Lateness  # of the sleeps


class ProfiledStages:
    """The stages of one pipeline; ``with ProfiledStages(profile, 4) as stages:``."""

    def __init__(self, profile: PipelineProfile, n: int, recordings: bytes = b"", model: Path | None = None) -> None:
        model = model or model_path(DEFAULT_MODEL)
        # A simulated stage keeps 4 bytes a token, whatever the model's cache would take.
        options = TargetOptions(str(model), stages=n, kv_bytes=8 * GIB, simulation=Simulation(profile, recordings))
        self.info = describe_target(options, model)
        self._folder = tempfile.TemporaryDirectory(prefix="st-")
        addresses = [f"unix:{self._folder.name}/{i}" for i in range(n)]
        self.endpoints = Endpoints(addresses[0], addresses[-1], SECRET, self.info)
        self._pipes: list[Connection] = []
        self._processes = []
        for i, following in enumerate([*addresses[1:], None]):
            pipe, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(target=_serve, args=(theirs, options, model, i, addresses[i], following))
            process.start()
            self._pipes.append(pipe)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()  # the stage listens

    def reports(self) -> list[StageReport]:
        """Of every stage, first to last."""
        for pipe in self._pipes:
            pipe.send("report")
        return [pipe.recv() for pipe in self._pipes]

    def __enter__(self) -> ProfiledStages:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(5)
            process.kill()
        self._folder.cleanup()


def _serve(
    pipe: Connection, options: TargetOptions, model: Path, place: int, address: str, following: str | None
) -> None:
    """One stage's process: serves until the other end of the pipe is closed."""
    torch.set_num_threads(1)
    info = describe_target(options, model)
    stage = load_stage(options, model, split_layers(info.spec.n_layers, options.stages)[place], info)
    assert isinstance(stage, SimulatedStage)
    worker = StageWorker(stage, torch.device("cpu"), address, SECRET)
    worker.start(following)
    gc.collect()
    gc.freeze()  # as a stage actor does
    pipe.send("listening")
    try:
        while pipe.recv():
            pipe.send(StageReport(stage.busy_s, stage.lateness))
    except (EOFError, OSError):
        worker.close()
