"""The router as a Serve deployment: one replica, driven by its event loop."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import hashlib
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray.serve.handle import DeploymentHandle

from deployments.metrics.certificates import Certificates
from deployments.metrics.process import Process
from deployments.metrics.reports import Reports
from deployments.observability.logs import configure
from deployments.observability.traces import RequestSpans
from deployments.observability.traces import tracer_of
from deployments.options import RetrievalOptions, RouterOptions, ScalingOptions, SpeculatorPlacement
from deployments.pipeline.connection import step_costs
from deployments.pipeline.replacement_seconds import ReplacementSeconds
from deployments.retrieval.client import RouterRetrieval
from deployments.router.admission import offered_methods
from deployments.router.draft_client import ActorDraftClient, DraftClient, InlineDraftClient
from deployments.router.router import Router
from deployments.router.scaling.bounds import bounds_of
from deployments.router.speculator_actor import start_speculators
from deployments.router.target_client import ServeTarget, first_endpoints, names_of_running
from deployments.serve_calls import check_single_replica
from deployments.submission.messages import Health, ModelCard
from deployments.submission.protocol import Attachment
from deployments.submission.server import SubmissionServer
from engine.errors import ConfigError, ModelChangedError
from engine.protocol import Needs
from engine.scheduling.request_validation import check_needs
from engine.simulated.profile import SIMULATED
from engine.step_cost import StepCosts, costs_file
from engine.target_model.info import TargetInfo
from speculators.kernels import compile_kernels
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool
from speculators.registry import available

LEAD_S = 2.0  # after which a router takes the pipelines over in any case

logger = logging.getLogger(__name__)


class RouterDeployment:
    """Wraps ``Router``; requests come over the channel of its ``SubmissionServer``.

    Args:
        targets: handles of the target deployments, one pipeline each.
        options: of the router.
        speculators: settings of the methods.
        placement: where they run.
        aliases: further model names.
        retrieval: handle of the retrieval deployment; None: methods look up in ``speculators.retrieval`` alone.
        retrieved: options of that deployment.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits async constructors
        self,
        targets: Sequence[DeploymentHandle],
        options: RouterOptions,
        speculators: SpeculatorOptions,
        placement: SpeculatorPlacement,
        aliases: tuple[str, ...] = (),
        retrieval: DeploymentHandle | None = None,
        retrieved: RetrievalOptions | None = None,
    ) -> None:
        configure(options.logs, "Router")
        check_single_replica("one router serves all pipelines; 'replicas' in args adds pipelines")
        self._retrieval: RouterRetrieval | None = None
        if retrieval is not None and retrieved is not None:
            self._retrieval = RouterRetrieval(retrieval, retrieved, options.model, speculators)
            speculators = self._retrieval.speculators
        replacements = ReplacementSeconds(options.model)
        self._scaling = options.scaling or ScalingOptions(len(targets), len(targets))
        least = self._scaling.least
        self._targets = [ServeTarget(handle, replacements, i >= least) for i, handle in enumerate(targets)]
        compiling = asyncio.create_task(asyncio.to_thread(compile_kernels))
        self._running: set[str] = set()  # of those that are elastic, as the router before this one wanted
        if any(one.is_elastic for one in self._targets):
            self._running = await names_of_running()
        there = [one for one in self._targets if not one.is_elastic or one.name in self._running]
        first, endpoints = await first_endpoints(there)
        info = endpoints.info
        self._is_draining = False
        await compiling  # before steps are timed
        connect = partial(first.connect, info)
        cost_file = str(costs_file(f"{options.cost_file}-{info.identity.numbers}")) if options.cost_file else ""
        costs = await step_costs(connect, cost_file, info, options.step_deadline, first.report_hang)
        trained = None if info.drafter is None else info.drafter.method
        speculators = replace(speculators, step_costs=costs, trained=trained)
        draft_client = _make_draft_client(speculators, placement, info)
        check_needs(draft_client.needs(options.method), info.spec)  # an unusable default must fail the start
        learn = None if self._retrieval is None else self._retrieval.learn
        reports, process = Reports(), Process("router", ray.util.get_node_ip_address())
        metrics = (reports, process, Certificates(options.model, os.environ), replacements)
        clients = [target.client(info, costs) for target in self._targets]
        tracer = tracer_of(options.traces, "Router")
        spans = None if tracer is None else RequestSpans(tracer)
        self._router = Router(options, info, draft_client, clients, learn, costs, metrics, spans)
        # The router before this one serves until Serve counts this one as up, and then sends the ingresses here.
        self._leading = asyncio.get_running_loop().call_later(LEAD_S, self._lead)
        self._card = _card(options, info, costs, aliases, _offered(options, info, speculators, draft_client))
        self._submissions = SubmissionServer(self._router.stream, self._problem, reports=reports, card=self._card)
        gc.collect()
        gc.freeze()  # drafting allocates many small objects: keep full collections away from everything loaded

    async def __del__(self) -> None:
        """Serve awaits this when it stops the replica in an orderly way.

        New requests are for the next router at once. Those that run go on here, until they have ended, another router
        takes the pipelines over, or the grace is over; the next router then goes on with them.
        """
        submissions = getattr(self, "_submissions", None)  # missing when the constructor failed
        if submissions is None:
            return
        self._leading.cancel()
        self._router.leave()
        await submissions.drain(self._router.options.grace, lambda: self._router.is_ready)

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Serve calls this with the deployment's ``user_config``, whenever it changes: bounds of the number of
        pipelines, within those that the application was built with. Nothing is restarted. What is wrong is told in the
        log, and changes nothing: Serve would replace a router that refuses it."""
        try:
            least, most = bounds_of(user_config, self._scaling)
        except ConfigError as error:
            logger.error("%s; the bounds stay as they are", error)
            return
        if self._scaling.least < self._scaling.most:
            logger.info("from %d to %d pipelines are wanted", least, most)
        self._router.scaler.bound(least, most)

    def _lead(self) -> None:
        """Take the pipelines over, once."""
        if not self._leading.cancelled():
            self._leading.cancel()
            # Not in the context of the request that came first: Serve would cancel the lanes' calls with it.
            contextvars.Context().run(self._router.start, self._running)

    async def attach(self, node: str) -> Attachment:
        """Where an ingress on the Ray node ``node`` (its id) connects to submit requests."""
        self._lead()
        is_here = node == ray.get_runtime_context().get_node_id()
        return await self._submissions.attachment(None if is_here else ray.util.get_node_ip_address())

    async def card(self) -> ModelCard:
        """The served model."""
        return self._card

    def _problem(self) -> str:
        """Why a request sent now would not be served; "": it would be, as at least one pipeline is up."""
        if self._is_draining:
            return "the server is being stopped"
        if self._router.is_ready:
            return ""
        return "; ".join(target.trouble for target in self._targets if target.trouble) or "no pipeline is up"

    async def health(self) -> Health:
        """How the router fares."""
        state, problem = await self._router.state(), self._problem()
        detail: dict[str, str | int | float | bool] = {"router_pid": os.getpid(), "max_nodes": self._card.max_nodes}
        detail |= {name: value for name, value in state.items() if name != "ready"}
        detail |= {} if self._retrieval is None else self._retrieval.detail()
        return Health(ok=not problem, reason=problem, detail=detail)

    async def check_health(self) -> None:
        """Serve calls this periodically; the router that it starts in this one's place serves the model that is there.

        Raises:
            ModelChangedError: no pipeline is up, and one that is there has another model than the one served here.
        """
        if not self._router.is_ready and any(target.is_another for target in self._targets):
            raise ModelChangedError("; ".join(f"{one.name}: {one.trouble}" for one in self._targets if one.is_another))

    async def drain(self) -> None:
        """Say from now on that this server is not ready; requests that come all the same are served."""
        self._is_draining = True

    async def close(self) -> None:
        """Stop serving, when the whole application goes: running streams get an error instead of waiting for the next
        router."""
        await self._router.close()

    async def metrics(self) -> str:
        """Prometheus exposition text."""
        return self._router.metrics_text() + ("" if self._retrieval is None else self._retrieval.metrics_text())


def _offered(
    options: RouterOptions, info: TargetInfo, speculators: SpeculatorOptions, draft_client: DraftClient
) -> tuple[str, ...]:
    """Methods that requests may name; for a simulated target, which has no states to read, those of text alone."""
    names = available(speculators)
    if info.spec.family == SIMULATED:
        names = tuple(name for name in names if draft_client.needs(name) == Needs())
    return offered_methods(options, names)


def _card(
    options: RouterOptions,
    info: TargetInfo,
    costs: StepCosts | None,
    aliases: tuple[str, ...],
    methods: tuple[str, ...],
) -> ModelCard:
    largest_tree, max_nodes = options.scheduler.max_tree_nodes, options.max_nodes
    if options.fits_nodes and costs is not None:
        max_nodes = costs.best_nodes(max_nodes)
        logger.info("requests that name no number draft up to %d nodes per step", max_nodes)
    made_by = f"{info.identity.digest} {options.software}"
    return ModelCard(
        name=options.model,
        max_model_len=info.max_model_len,
        vocab_size=info.spec.vocab_size,
        eos_ids=info.spec.eos_ids,
        created=int(time.time()),
        fingerprint=f"fp_{hashlib.sha256(made_by.encode()).hexdigest()[:16]}",
        identity=info.identity,
        aliases=aliases,
        method=options.method,
        methods=methods,
        max_nodes=min(max_nodes, largest_tree),
        auto_nodes=min(options.max_nodes, largest_tree),
        limit_nodes=min(options.limit_nodes, largest_tree),
    )


def _make_draft_client(speculators: SpeculatorOptions, placement: SpeculatorPlacement, info: TargetInfo) -> DraftClient:
    pool = SpeculatorPool(speculators)
    if placement.actors == 0:
        return InlineDraftClient(pool, info.spec.vocab_size)
    actors = start_speculators(placement.actors, speculators, placement.logs, gpus=placement.gpus)
    return ActorDraftClient(actors, pool, info.spec.vocab_size, placement.timeout)
