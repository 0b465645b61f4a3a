"""Runs the tensor-parallel ranks of a stage as processes of this machine, without Ray."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from engine.errors import ConfigError, RankLostError, SpectraError
from engine.model.ranges import LayerRange
from engine.parallel.commands import PipeLink
from engine.parallel.follower import follow
from engine.parallel.leader import ParallelStage
from engine.stage.stage import Stage
from engine.target_model.info import TargetInfo
from engine.target_model.loading import load_stage
from engine.target_model.options import TargetOptions, is_cuda


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
    for rank in range(1, size):
        ours, theirs = context.Pipe()
        own = replace(options, device=f"cuda:{rank}") if is_cuda(options.device) else options
        arguments = (theirs, own, path, layers, info, rank, threads)
        context.Process(target=_run_rank, args=arguments, name=f"rank-{rank}").start()
        theirs.close()
        links.append(PipeLink(ours))
        atexit.register(ours.close)  # the rank then ends by itself; Python waits for it
    stage = load_stage(options, path, layers, info)
    assert isinstance(stage, ParallelStage), "a stage of several ranks has a leader"
    for rank, link in enumerate(links, 1):
        try:
            fault = link.receive().decode()
        except EOFError:
            fault = "its process ended"
        if fault:
            raise ConfigError(f"tensor-parallel rank {rank} could not start: {fault}")
    stage.connect(links)
    return stage


def _run_rank(
    connection: Connection,
    options: TargetOptions,
    path: Path,
    layers: LayerRange,
    info: TargetInfo,
    rank: int,
    threads: int,
) -> None:
    link = PipeLink(connection)
    torch.set_num_threads(threads)
    try:
        stage = load_stage(options, path, layers, info, rank=rank)
    except SpectraError as error:
        link.send(str(error).encode())
        return
    link.send(b"")
    assert isinstance(stage, Stage), "only rank 0 leads"
    with contextlib.suppress(EOFError, OSError, RankLostError):
        follow(stage, link)
