"""The target as a Serve deployment: one replica owns a placement group with the stage actors of one pipeline.

The replica never touches the step path. It starts the stages, says where they listen, and fails its health check when
one of them dies: Serve then replaces the replica and, with it, the whole pipeline.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from deployments.options import PipelineOptions
from deployments.pipeline import Endpoints
from deployments.stage_actor import StageActor
from engine.errors import TargetLostError
from engine.model.loader import load_spec, resolve
from engine.model.shard import split_layers
from engine.target import TargetOptions, plan_cache, resolve_dtype

PING_S = 5.0  # a stage that does not answer so long is dead


def stage_environment(options: PipelineOptions) -> dict[str, str]:
    """Environment of a stage process; spinning threads would steal the core that another stage needs."""
    return {
        "OMP_NUM_THREADS": str(options.threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
        **dict(options.environment),
    }


class TargetDeployment:
    """Pipeline owner.

    Args:
        target: what to load.
        pipeline: resources of a stage.
    """

    def __init__(self, target: TargetOptions, pipeline: PipelineOptions) -> None:
        path = resolve(target.model)
        spec = load_spec(path)
        info = plan_cache(spec, target, resolve_dtype(target.dtype, spec, target.device))
        secret = secrets.token_bytes(32)
        self._actors = self._start_actors(target, pipeline, path, info, split_layers(spec.n_layers, target.stages))
        addresses = self._connect(pipeline, secret)
        self._endpoints = Endpoints(addresses[0], addresses[-1], secret, info)

    def _start_actors(
        self, target: TargetOptions, pipeline: PipelineOptions, path: Path, info: Any, ranges: list[Any]
    ) -> list[Any]:
        bundle = {"CPU": pipeline.cpus} | ({"GPU": pipeline.gpus} if pipeline.gpus else {})
        self._group = placement_group([bundle] * len(ranges), strategy="PACK")
        remote = ray.remote(StageActor)
        return [
            remote.options(
                num_cpus=pipeline.cpus,
                num_gpus=pipeline.gpus,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=i),
                runtime_env={"env_vars": stage_environment(pipeline)},
                max_restarts=0,  # a stage alone is worth nothing: the pipeline is replaced as a whole
            ).remote(target, str(path), layers, info, pipeline.threads)
            for i, layers in enumerate(ranges)
        ]

    def _connect(self, pipeline: PipelineOptions, secret: bytes) -> list[str]:
        """Let every stage listen, then tell each its successor; blocks until all have loaded."""
        unix = pipeline.transport == "unix" or (pipeline.transport == "auto" and len(ray.nodes()) == 1)
        self._sockets = tempfile.TemporaryDirectory(prefix="spectra-") if unix else None
        wanted = [
            f"unix:{self._sockets.name}/{i}" if self._sockets else f"tcp:{ray.util.get_node_ip_address()}:0"
            for i in range(len(self._actors))
        ]
        listening = [actor.listen.remote(a, secret) for actor, a in zip(self._actors, wanted, strict=True)]
        addresses: list[str] = ray.get(listening)
        following = [*addresses[1:], None]
        self._pids = ray.get([actor.serve.remote(a) for actor, a in zip(self._actors, following, strict=True)])
        return addresses

    def __del__(self) -> None:
        """Serve calls this when it stops the replica in good order."""
        sockets = getattr(self, "_sockets", None)  # missing when the constructor failed
        if sockets is not None:
            sockets.cleanup()

    async def endpoints(self) -> Endpoints:
        """Where the pipeline listens."""
        return self._endpoints

    async def stage_pids(self) -> list[int]:
        """Process ids of the stages, first to last: for operators and for tests that kill them."""
        return list(self._pids)

    async def check_health(self) -> None:
        """Serve calls this periodically.

        Raises:
            TargetLostError: a stage is dead or hangs.
        """
        try:
            pings = asyncio.gather(*(actor.ping.remote() for actor in self._actors))
            await asyncio.wait_for(pings, PING_S)
        except (ray.exceptions.RayError, TimeoutError) as error:
            raise TargetLostError(f"a stage does not answer: {error}") from error
