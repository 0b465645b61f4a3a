"""A stage in a Ray actor: loads its layers, then serves steps over its channel. Ray only starts and watches it.

The owner of the pipeline imports this module too and must stay light: only the actor itself imports torch and the
model's code.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

from deployments.channels.addresses import tcp
from deployments.channels.socket_folder import SocketFolder
from deployments.observability.logs import LogOptions, configure
from deployments.pipeline.endpoints import ProcessIdentity, StageEndpoint
from deployments.pipeline.stage_reports import StageLoad, StagePlan, StageRoom
from engine.errors import ConfigError, SpectraError, TargetLostError, UnsupportedModelError
from engine.target_model.options import TargetOptions

if TYPE_CHECKING:
    import torch

    from deployments.stage.worker import StageWorker
    from engine.stage.base import StageLike

POLL_S = 0.1  # seconds between two checks of the loop
SOCKETS = "spectra-stage-"  # prefix of the socket folders
ONLY_UNIX, ONLY_TCP = "unix", "tcp"  # values of ``transport``; any other allows both


@dataclass(frozen=True, slots=True)
class Loaded:
    """Time and memory of loading."""

    seconds: float
    n_bytes: int  # memory of the process and its GPU
    load: StageLoad = field(default_factory=StageLoad)


@dataclass(frozen=True, slots=True)
class Pulse:
    """The state of a stage at one moment."""

    busy: float  # seconds that its loop has spent on the current step; 0 between steps
    n_sequences: int = 0  # of a connected router


class StageActor:
    """Plain class; ``stage_handle`` wraps it in ``ray.remote``, with a few threads for its calls.

    Args:
        options: of the target; every stage finds or downloads its files on its own node.
        threads: intra-op.
        transport: see ``PipelineOptions``.
        logs: logging options; None: unchanged.
        gpus: reserved GPUs; less than 1 is a share of one.
    """

    def __init__(
        self,
        options: TargetOptions,
        threads: int,
        transport: str,
        logs: LogOptions | None = None,
        gpus: float = 0.0,
    ) -> None:
        self._logs = logs
        if logs is not None:
            configure(logs, "Stage")
        began = time.monotonic()
        if options.device.startswith(
            "cuda"
        ):  # lazy loading of a kernel would wait for a receive that waits for a neighbour
            os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
        gc.disable()  # collections would visit what imports allocate, and take a sixth of their time
        import torch

        # Import everything now, in parallel with the other stages: later they wait for the first one to plan.
        from deployments.stage import planning, worker  # noqa: F401

        gc.enable()
        self._importing = time.monotonic() - began
        torch.set_num_threads(threads)
        self._options, self._gpus = options, gpus
        self._transport = transport
        self._device = torch.device(options.device)
        self._stage: StageLike | None = None
        self._worker: StageWorker | None = None
        self._sockets: SocketFolder | None = None

    def identity(self) -> ProcessIdentity:
        """Identify this process; needs nothing loaded."""
        return ProcessIdentity.here()

    def room(self) -> StageRoom:
        """The memory and numerics of this process; a GPU's kernels are tested.

        Raises:
            SpectraError: the checkpoint's config cannot be read here, or as ``with_numerics``.
        """
        from engine.target_model.fetching import texts_of
        from engine.target_model.memory import room_of
        from engine.target_model.numerics import with_numerics

        self._options = with_numerics(self._options, texts_of(self._options))
        assert self._options.resolution is not None, "they are resolved now"
        return StageRoom(room_of(self._options.device, self._gpus), self._options.resolution)

    def plan(self, rooms: Sequence[StageRoom] = ()) -> StagePlan:
        """Describe and split the target; one stage does it for all, which have returned their ``room``.

        Raises:
            SpectraError: as ``plan_stages``.
        """
        from deployments.stage.planning import plan_stages
        from engine.target_model.fetching import texts_of

        return plan_stages(self._options, texts_of(self._options), rooms)

    def prepare(self) -> None:
        """Do the part of loading that is the same for all layers, so that ``load`` takes less time later.

        Raises:
            SpectraError: the checkpoint cannot be read here.
        """
        from deployments.stage.planning import prepare
        from engine.target_model.fetching import texts_of

        prepare(self._options, texts_of(self._options))

    def load(self, plan: StagePlan, number: int) -> Loaded:
        """Load the part of process ``number`` of the pipeline, which this process becomes: stage * ranks + rank.

        Raises:
            ConfigError: the checkpoint differs from the planned one, or is not available on this node.
            SpectraError: as ``load_stage``, and for any other fault of the checkpoint, which the message names.
        """
        from deployments.stage.planning import check_checkpoint
        from engine.model.weights.meter import Meter
        from engine.target_model.fetching import layers_of
        from engine.target_model.loading import load_stage
        from engine.target_model.numerics import adopt, with_numerics

        began = time.monotonic()
        stage, rank = divmod(number, plan.tensor_parallel)
        if self._logs is not None:
            configure(self._logs, f"Stage-{stage}" if plan.tensor_parallel == 1 else f"Stage-{stage}-rank-{rank}")
        layers = plan.ranges[stage]
        path = layers_of(self._options, layers)
        fetched = time.monotonic()
        meter = Meter()
        try:
            check_checkpoint(plan, path)
            checked = time.monotonic()
            options = adopt(with_numerics(self._options, path), plan.numerics)
            self._stage = load_stage(options, path, layers, plan.info, meter, rank)
        except SpectraError:
            raise
        except Exception as error:  # such as a truncated file, which libraries do not name
            raise UnsupportedModelError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
        ended, read = time.monotonic(), meter.seconds
        phases = {
            "import": self._importing,
            "resolve": fetched - began,
            "check": checked - fetched,
            "read": read,
            "build": ended - checked - read,
        }
        memory = psutil.Process().memory_info().rss + _allocated(self._device)
        return Loaded(ended - began, memory, StageLoad(phases, meter.n_bytes))

    def listen(self, secret: bytes) -> StageEndpoint:
        """Listen for peers; returns the addresses by which they reach this stage."""
        from deployments.stage.worker import StageWorker

        assert self._stage is not None, "load comes before listen"
        here = ProcessIdentity.here()
        addresses = []
        if self._transport != ONLY_TCP:
            self._sockets = SocketFolder(SOCKETS)
            addresses.append(f"unix:{self._sockets.path}/s")
        if self._transport != ONLY_UNIX:
            addresses.append(tcp(here.ip))
        self._worker = StageWorker(
            self._stage, self._device, addresses[0], secret, self._transport, also="".join(addresses[1:])
        )
        gc.collect()
        gc.freeze()  # everything loaded now stays: a full collection would stall a step by tens of milliseconds
        reached = {address.partition(":")[0]: address for address in self._worker.addresses}
        return StageEndpoint(here.node, reached.get("unix", ""), reached.get("tcp", ""))

    def serve(self, next_address: str | None, rows_address: str, ranks: tuple[str, ...] = ()) -> None:
        """Start the loop, or change its neighbours, as ``StageWorker.start``."""
        assert self._worker is not None, "listen comes before serve"
        self._worker.start(next_address, rows_address, ranks)

    def ping(self) -> Pulse:
        """The stage's state; answers while the process lives.

        Raises:
            TargetLostError: the process lives, but its loop has ended.
            ConfigError: the option ``transport`` connects no neighbour.
        """
        if self._stage is None or self._worker is None:
            return Pulse(0.0)
        self._check_transports()
        if not self._worker.is_alive:
            raise TargetLostError("the stage's loop has ended; its log says why")
        since = self._worker.busy_since
        return Pulse(0.0 if since is None else time.monotonic() - since, self._worker.n_sequences)

    def hold(self) -> str:
        """Return the reason once the loop has ended; the call fails at once when the process dies.

        Raises:
            ConfigError: like ``ping``.
        """
        pause = threading.Event()
        while self._worker is None or self._worker.is_alive:
            pause.wait(POLL_S)
            self._check_transports()
        return "its loop has ended; its log says why"

    def _check_transports(self) -> None:
        if self._worker is not None and self._worker.fault:
            raise ConfigError(self._worker.fault)

    def leave(self) -> None:
        """Stop listening and remove the sockets."""
        if self._worker is not None:
            self._worker.close()
        if self._sockets is not None:
            self._sockets.remove()


def _allocated(device: torch.device) -> int:
    """Bytes allocated on a GPU; 0 on a CPU."""
    import torch

    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
