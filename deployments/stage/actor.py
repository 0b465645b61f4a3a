"""A stage in a Ray actor: loads its layers, then serves steps over its channel. Ray only starts and watches it.

The owner of the pipeline imports this module too and must stay light: only the actor itself imports torch and the
model's code.
"""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from deployments.observability.logs import LogOptions, configure
from deployments.pipeline.endpoints import ProcessIdentity, StageEndpoint
from deployments.pipeline.plan import StagePlan
from deployments.transport.socket_folder import SocketFolder
from engine.errors import ConfigError, SpectraError, TargetLostError, UnsupportedModelError
from engine.target.options import TargetOptions

if TYPE_CHECKING:
    import torch

    from deployments.stage.worker import StageWorker
    from engine.stage.base import StageLike

POLL_S = 0.1  # seconds between two looks at the loop
SOCKETS = "spectra-stage-"  # prefix of the socket folders
ONLY_UNIX, ONLY_TCP = "unix", "tcp"  # values of ``transport``; any other allows both


@dataclass(frozen=True, slots=True)
class Loaded:
    """What loading cost."""

    seconds: float
    n_bytes: int  # memory of the process, and of its GPU


@dataclass(frozen=True, slots=True)
class Pulse:
    """The state of a stage at one moment."""

    busy: float  # seconds that its loop has spent on the current step; 0 between steps
    n_sequences: int = 0  # that a connected router has on it


class StageActor:
    """Plain class; ``stage_handle`` wraps it in ``ray.remote``, with a few threads for its calls.

    Args:
        options: of the target.
        path: checkpoint directory.
        number: of this stage, from 0.
        threads: intra-op.
        transport: see ``PipelineOptions``.
        logs: how the process logs; None: as it does already.
    """

    def __init__(
        self,
        options: TargetOptions,
        path: str,
        number: int,
        threads: int,
        transport: str,
        logs: LogOptions | None = None,
    ) -> None:
        if logs is not None:
            configure(logs, f"Stage-{number}")
        import torch

        # Import everything now, at the same time as the other stages: later they wait for the first one to plan.
        from deployments.stage import planning, worker  # noqa: F401

        torch.set_num_threads(threads)
        self._options = options
        self._path = Path(path)
        self._number = number
        self._transport = transport
        self._device = torch.device(options.device)
        self._stage: StageLike | None = None
        self._worker: StageWorker | None = None
        self._sockets: SocketFolder | None = None

    def identity(self) -> ProcessIdentity:
        """Of this process; needs nothing loaded."""
        return ProcessIdentity.here()

    def plan(self) -> StagePlan:
        """Describe and split the target; one stage does it for all.

        Raises:
            SpectraError: as ``plan_stages``.
        """
        from deployments.stage.planning import plan_stages

        return plan_stages(self._options, self._path)

    def load(self, plan: StagePlan) -> Loaded:
        """Load the layers.

        Raises:
            ConfigError: the checkpoint is not the one that the plan was made for.
            SpectraError: as ``load_stage``, and for any other fault of the checkpoint, which the message names.
        """
        from deployments.stage.planning import check_checkpoint
        from engine.target.loading import load_stage

        began = time.monotonic()
        try:
            check_checkpoint(plan, self._path)
            self._stage = load_stage(self._options, self._path, plan.ranges[self._number], plan.info)
        except SpectraError:
            raise
        except Exception as error:  # such as a truncated file, which libraries do not name
            raise UnsupportedModelError(f"{self._path} cannot be loaded: {type(error).__name__}: {error}") from error
        return Loaded(time.monotonic() - began, psutil.Process().memory_info().rss + _allocated(self._device))

    def listen(self, secret: bytes) -> StageEndpoint:
        """Listen for peers; returns the addresses by which they reach this stage."""
        from deployments.stage.worker import StageWorker

        assert self._stage is not None, "load comes before listen"
        here = ProcessIdentity.here()
        wanted = []
        if self._transport != ONLY_TCP:
            self._sockets = SocketFolder(SOCKETS)
            wanted.append(f"unix:{self._sockets.path}/s")
        if self._transport != ONLY_UNIX:
            wanted.append(f"tcp:{here.ip}:0")
        self._worker = StageWorker(
            self._stage, self._device, wanted[0], secret, self._transport, also="".join(wanted[1:])
        )
        reached = {address.partition(":")[0]: address for address in self._worker.addresses}
        return StageEndpoint(here.node, reached.get("unix", ""), reached.get("tcp", ""))

    def serve(self, next_address: str | None, rows_address: str) -> None:
        """Start the loop, or change its neighbours, as ``StageWorker.start``."""
        assert self._worker is not None, "listen comes before serve"
        self._worker.start(next_address, rows_address)
        gc.collect()
        gc.freeze()  # everything loaded now stays: a full collection would stall a step by tens of milliseconds

    def ping(self) -> Pulse:
        """The stage's state; answers while the process lives.

        Raises:
            TargetLostError: the process lives, but its loop has ended.
            ConfigError: the option ``transport`` allows no link to a neighbour.
        """
        if self._stage is None or self._worker is None:
            return Pulse(0.0)
        self._check_links()
        if not self._worker.is_alive:
            raise TargetLostError("the stage's loop has ended; its log says why")
        since = self._worker.busy_since
        return Pulse(0.0 if since is None else time.monotonic() - since, self._worker.n_sequences)

    def hold(self) -> str:
        """Return the reason once the loop has ended; its caller also learns at once when the process dies.

        Raises:
            ConfigError: like ``ping``.
        """
        pause = threading.Event()
        while self._worker is None or self._worker.is_alive:
            pause.wait(POLL_S)
            self._check_links()
        return "its loop has ended; its log says why"

    def _check_links(self) -> None:
        if self._worker is not None and self._worker.fault:
            raise ConfigError(self._worker.fault)

    def leave(self) -> None:
        """Stop listening and remove the sockets."""
        if self._worker is not None:
            self._worker.close()
        if self._sockets is not None:
            self._sockets.remove()


def _allocated(device: torch.device) -> int:
    """Bytes of memory on its GPU, if it has one."""
    import torch

    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
