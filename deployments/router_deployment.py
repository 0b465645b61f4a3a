"""The router as a Serve deployment: one replica, driven by its event loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from deployments.drafters import ActorDrafter, Drafter, InlineDrafter
from deployments.messages import Health, ModelCard, decode_request, encode_error, encode_event
from deployments.options import RetrievalOptions, RouterOptions, SpeculatorPlacement
from deployments.pipeline import Endpoints, Pipeline, measure_pipeline
from deployments.retrieval_router import RouterRetrieval
from deployments.router import RECONNECT_S, Router
from deployments.speculator_actor import start_speculators
from engine.admission import check_needs
from engine.errors import SpectraError, TargetLostError
from engine.step_cost import StepCosts, read_costs, write_costs
from engine.target import TargetInfo
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions
from speculators.successors import compile_kernels

logger = logging.getLogger(__name__)

MEASURE_ATTEMPTS = 3  # to time the target's steps at start


class RouterDeployment:
    """Wraps ``Router``: bytes in, bytes out.

    Args:
        target: handle of the target deployment.
        options: of the router.
        speculators: settings of the methods.
        placement: where they run.
        aliases: further model names.
        retrieval: handle of the retrieval deployment; None: what the methods look up does not change.
        retrieved: what that deployment was told.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits async constructors
        self,
        target: DeploymentHandle,
        options: RouterOptions,
        speculators: SpeculatorOptions,
        placement: SpeculatorPlacement,
        aliases: tuple[str, ...] = (),
        retrieval: DeploymentHandle | None = None,
        retrieved: RetrievalOptions | None = None,
    ) -> None:
        self._target = target
        self._retrieval: RouterRetrieval | None = None
        if retrieval is not None and retrieved is not None:
            self._retrieval = RouterRetrieval(retrieval, retrieved, options.model, speculators)
            speculators = self._retrieval.speculators
        endpoints: Endpoints = await target.endpoints.remote()
        self._aliases = aliases
        self._created = int(time.time())
        compile_kernels()
        costs = await self._step_costs(options.cost_file, endpoints.info)
        drafter = _make_drafter(replace(speculators, step_costs=costs), placement, endpoints.info)
        check_needs(drafter.needs(options.method), endpoints.info.spec)  # a default nobody could use must not come up
        learn = None if self._retrieval is None else self._retrieval.learn
        self._router = Router(options, endpoints.info, drafter, self._connect, learn)
        self._router.start()
        gc.collect()
        gc.freeze()  # drafting allocates many small objects: keep full collections away from everything loaded

    async def _connect(self) -> Pipeline:
        """A pipeline, as soon as there is one; Serve may still name a replica that is dead."""
        while True:
            try:
                return await Pipeline.connect(await self._target.endpoints.remote())
            except (TargetLostError, RayError, RayServeException) as error:
                logger.info("no pipeline yet: %s", error)
                await asyncio.sleep(RECONNECT_S)

    async def _step_costs(self, file: str, info: TargetInfo) -> StepCosts | None:
        """Step times of this target on this machine, for ``auto``: from an earlier start, or measured now.

        None for a target that fails or dies of it every time: ``auto`` then counts nodes as free.
        """
        known = read_costs(Path(file)) if file else None
        if known is not None:
            return known
        for _ in range(MEASURE_ATTEMPTS):
            pipeline = await self._connect()
            try:
                costs = await measure_pipeline(pipeline, info)
                break
            except TargetLostError as error:
                logger.warning("the pipeline was lost while it was measured: %s", error)
            finally:
                pipeline.close()
        else:
            return None
        if file:
            write_costs(Path(file), costs)
        return costs

    async def stream(self, raw: bytes) -> AsyncIterator[bytes]:
        """Events of one request; an engine error is the last item, not an exception."""
        try:
            async with aclosing(self._router.stream(decode_request(raw))) as events:
                async for event in events:
                    yield encode_event(event)
        except SpectraError as error:
            yield encode_error(error)

    async def card(self) -> ModelCard:
        """The served model."""
        info, options = self._router.info, self._router.options
        return ModelCard(
            name=options.model,
            max_model_len=info.max_model_len,
            vocab_size=info.spec.vocab_size,
            eos_ids=info.spec.eos_ids,
            created=self._created,
            fingerprint=f"{info.spec.family}-{info.spec.n_layers}x{info.spec.hidden_size}",
            aliases=self._aliases,
        )

    async def health(self) -> Health:
        """Ready while a pipeline is up."""
        state = await self._router.state()
        ready = self._router.is_ready
        detail: dict[str, str | int | float | bool] = {"router_pid": os.getpid()}
        detail |= {name: value for name, value in state.items() if name != "ready"}
        detail |= {} if self._retrieval is None else self._retrieval.detail()
        return Health(ok=ready, reason="" if ready else "no pipeline is up", detail=detail)

    async def metrics(self) -> str:
        """Prometheus exposition text."""
        return self._router.metrics_text() + ("" if self._retrieval is None else self._retrieval.metrics_text())


def _make_drafter(speculators: SpeculatorOptions, placement: SpeculatorPlacement, info: TargetInfo) -> Drafter:
    pool = SpeculatorPool(speculators)
    if placement.actors == 0:
        return InlineDrafter(pool, info.spec.vocab_size)
    actors = start_speculators(placement.actors, speculators, gpus=placement.gpus)
    return ActorDrafter(actors, pool, info.spec.vocab_size, placement.timeout)
