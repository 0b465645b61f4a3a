"""Runs the tensor-parallel ranks of a stage as processes of this machine, without Ray."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from pathlib import Path

import torch

from engine.errors import ConfigError, SpectraError
from engine.model.ranges import LayerRange
from engine.parallel.commands import PipeLink
from engine.parallel.follower import follow
from engine.parallel.leader import ParallelStage
from engine.stage.stage import Stage
from engine.target_model.info import TargetInfo
from engine.target_model.loading import load_stage
from engine.target_model.options import TargetOptions, is_cuda

END_S = 5.0  # seconds that a rank has to end by itself


def load_ranks(options: TargetOptions, path: Path, layers: LayerRange, info: TargetInfo) -> ParallelStage:
    """Start the other ranks, load the leader meanwhile, and connect them. The processes end with this one.

    Rank ``r`` runs on GPU ``r``, and on a CPU the ranks share this process's threads.

    Raises:
        ConfigError: a rank could not load its share, or as ``load_stage``.
        UnsupportedModelError: the checkpoint cannot be run.
    """
    size, context = options.tensor_parallel, multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // size)
    torch.set_num_threads(threads)
    links: list[PipeLink] = []
    processes: list[BaseProcess] = []
    try:
        for rank in range(1, size):
            ours, theirs = context.Pipe()
            links.append(PipeLink(ours))
            own = replace(options, device=f"cuda:{rank}") if is_cuda(options.device) else options
            arguments = (theirs, own, path, layers, info, rank, threads)
            process = context.Process(target=_run_rank, args=arguments, name=f"rank-{rank}", daemon=True)
            process.start()
            processes.append(process)
            theirs.close()
        stage = load_stage(options, path, layers, info)
        assert isinstance(stage, ParallelStage), "a stage of several ranks has a leader"
        for rank, link in enumerate(links, 1):
            try:
                fault = link.receive().decode()
            except (EOFError, OSError) as error:
                fault = str(error) or "its process ended"
            if fault:
                raise ConfigError(f"tensor-parallel rank {rank} could not start: {fault}")
        stage.connect(links)
    except BaseException:
        _end(links, processes)
        raise
    Finalize(stage, _end, (links, processes), exitpriority=0)  # at exit, it precedes the wait for all processes
    return stage


def _end(links: Sequence[PipeLink], processes: Sequence[BaseProcess]) -> None:
    """Close all links, upon which the ranks end; kill those that do not."""
    for link in links:
        link.close()
    for process in processes:
        process.join(END_S)
        process.kill()


def _run_rank(
    connection: Connection,
    options: TargetOptions,
    path: Path,
    layers: LayerRange,
    info: TargetInfo,
    rank: int,
    threads: int,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; this process ends with its leader
    link = PipeLink(connection)
    torch.set_num_threads(threads)
    with contextlib.suppress(EOFError, OSError):  # the leader is gone
        try:
            stage = load_stage(options, path, layers, info, rank=rank)
        except SpectraError as error:
            link.send(str(error).encode())
            return
        link.send(b"")
        assert isinstance(stage, Stage), "only rank 0 leads"
        follow(stage, link)
