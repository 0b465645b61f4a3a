"""The target as a Serve deployment: one replica with the stage actors of one pipeline in its own placement group.

The replica takes no part in steps. It starts the stages, gives routers their addresses, and replaces a stage that dies
or hangs (``supervisor``). If that fails, so does its health check, and Serve replaces the replica and its pipeline.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from ray.util.placement_group import PlacementGroup, get_current_placement_group

from deployments.observability.logs import configure
from deployments.options import PipelineOptions
from deployments.pipeline.endpoints import Endpoints
from deployments.pipeline.leadership import NO_ROUTER, LeaderEpochs, RouterStatus
from deployments.serve_calls import check_single_replica
from deployments.target_model.bundles import Bundle, Bundles
from deployments.target_model.stage_handle import StageHandle
from deployments.target_model.supervisor import supervise_stages
from engine.errors import ConfigError
from engine.target_model.options import TargetOptions

LEAST_CPU = 0.001  # Ray refuses empty bundles
HOLD_S = 2.0  # seconds that a call of ``hold`` lasts


def stage_environment(options: PipelineOptions) -> dict[str, str]:
    """Environment of a stage process; idle threads must not spin, because another stage needs the core."""
    return {
        "OMP_NUM_THREADS": str(options.threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
        **dict(options.environment),
    }


def stage_resources(pipeline: PipelineOptions, n_ranks: int) -> dict[str, float]:
    """What a bundle needs for the ``n_ranks`` processes of one stage."""
    cpus = max(n_ranks * pipeline.cpus, LEAST_CPU)
    return {"CPU": cpus} | ({"GPU": n_ranks * pipeline.gpus} if pipeline.gpus else {})


def replica_placement(pipeline: PipelineOptions, target: TargetOptions, replica_cpus: float) -> dict[str, Any]:
    """Serve's options of a placement group with one bundle per stage; the replica shares the first one's."""
    stage = stage_resources(pipeline, target.tensor_parallel)
    first = stage | {"CPU": stage["CPU"] + replica_cpus}
    bundles = [first, *(dict(stage) for _ in range(target.stages - 1))]
    return {"placement_group_bundles": bundles, "placement_group_strategy": pipeline.placement.upper()}


class TargetDeployment:
    """Owns one pipeline.

    Args:
        target: what to load.
        pipeline: resources and supervision of the stages.
    """

    async def __init__(self, target: TargetOptions, pipeline: PipelineOptions) -> None:  # type: ignore[misc]
        configure(pipeline.logs, "Target")
        check_single_replica("'replicas' in args adds pipelines, a deployment each")
        check_standbys(target, pipeline)
        launch = partial(_launch, target, pipeline)
        self._epochs = LeaderEpochs()
        self._grace = pipeline.grace
        resources, stays = stage_resources(pipeline, target.tensor_parallel), pipeline.transport == "unix"
        own = _own_placement(target.stages)
        bundles = Bundles(own, resources, pipeline.placement, stays, target.tensor_parallel)
        self._supervisor = supervise_stages(launch, bundles, pipeline.standby_stages, pipeline.replace_timeout)
        await self._supervisor.start()

    async def __del__(self) -> None:
        """Wait up to ``grace`` seconds until requests end or move to the next pipeline. Serve awaits this."""
        supervisor = getattr(self, "_supervisor", None)  # missing when the constructor failed
        if supervisor is not None:
            await supervisor.wait_until_unused(self._grace)
            supervisor.close()

    async def endpoints(self, node: str = "", asking: RouterStatus = NO_ROUTER) -> Endpoints:
        """Addresses of the pipeline for a router on the Ray node ``node`` (its id); waits while a stage is replaced.

        Raises:
            SupersededError: a later router leads this pipeline.
            TargetLostError: the replacement takes longer than a call can wait; call again.
            ConfigError: the option ``transport`` does not reach that node.
        """
        self._epochs.admit(asking)
        return replace(await self._supervisor.endpoints(node), leader=self._epochs.leader)

    async def hold(self) -> None:
        """Last for ``HOLD_S``. Routers that need an elastic pipeline repeat this call, and Serve scales by such calls.

        A call is short, because Serve waits for it when it replaces the replica.
        """
        await asyncio.sleep(HOLD_S)

    async def report_hang(self, reason: str) -> None:
        """Find and replace a stage that hangs now, not at its next ping."""
        await self._supervisor.report_hang(reason)

    async def stage_pids(self) -> list[int]:
        """Process ids of the stages and their ranks, in order: for operators and for tests that kill them."""
        return self._supervisor.pids

    async def state(self) -> dict[str, Any]:
        """For operators: see ``StageSupervisor.state``."""
        return self._supervisor.state()

    async def check_health(self) -> None:
        """Raise TargetLostError when a lost stage could not be replaced; Serve calls this periodically."""
        self._supervisor.check()


def check_standbys(target: TargetOptions, pipeline: PipelineOptions) -> None:
    """Raise ConfigError if standbys are requested that could not replace a rank."""
    if pipeline.standby_stages and target.tensor_parallel > 1:
        raise ConfigError(
            f"standby_stages is {pipeline.standby_stages} and tensor_parallel {target.tensor_parallel}; a standby can "
            "replace a rank only on the node of the rank's stage: set standby_stages to 0"
        )


def _own_placement(n_stages: int) -> PlacementGroup:
    placed = get_current_placement_group()
    if placed is None or placed.bundle_count != n_stages:
        raise ConfigError(f"placement_group_bundles: the target needs one bundle for each of its {n_stages} stages")
    return placed


def _launch(target: TargetOptions, pipeline: PipelineOptions, bundle: Bundle) -> StageHandle:
    options = {
        "num_cpus": pipeline.cpus,
        "num_gpus": pipeline.gpus,
        "runtime_env": {"env_vars": stage_environment(pipeline)},
    }
    return StageHandle.start(options, target, pipeline, bundle)
