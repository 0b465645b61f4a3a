"""The router as a Serve deployment with one replica."""

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

from deployments.metrics.process import CertificateMetrics, ProcessMetrics
from deployments.metrics.reports import Reports
from deployments.observability.logs import configure
from deployments.observability.traces import RequestSpans, tracer_of
from deployments.options import RetrievalOptions, RouterOptions, ScalingOptions, SpeculatorPlacement
from deployments.pipeline.connection import step_costs
from deployments.pipeline.replacement_metrics import ReplacementMetrics
from deployments.retrieval.client import RouterRetrieval
from deployments.router.admission import offered_methods
from deployments.router.drafting import DraftClient, InlineDraftClient
from deployments.router.router import Router
from deployments.router.scaling.policy import bounds_of
from deployments.router.speculator_actors import ActorDraftClient, start_speculators
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

TAKEOVER_S = 2.0  # after which a router takes the pipelines over even if no ingress has asked for it

logger = logging.getLogger(__name__)


class RouterDeployment:
    """Wraps ``Router``; requests arrive over the channel of its ``SubmissionServer``.

    Args:
        targets: handles of the target deployments, one pipeline each.
        options: of the router.
        speculators: settings of the methods.
        placement: where the speculators run.
        aliases: further model names.
        retrieval: handle of the retrieval deployment; None: methods use ``speculators.retrieval`` alone.
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
        self._is_draining = False
        self._retrieval: RouterRetrieval | None = None
        if retrieval is not None and retrieved is not None:
            self._retrieval = RouterRetrieval(retrieval, retrieved, options.model, speculators)
            speculators = self._retrieval.speculators
        replacements = ReplacementMetrics(options.model)
        self._scaling = options.scaling or ScalingOptions(len(targets), len(targets))
        least = self._scaling.least
        self._targets = [ServeTarget(handle, replacements, i >= least) for i, handle in enumerate(targets)]
        compiling = asyncio.create_task(asyncio.to_thread(compile_kernels))
        self._running: set[str] = set()  # elastic targets that the previous router has requested
        if any(one.is_elastic for one in self._targets):
            self._running = await names_of_running()
        existing = [one for one in self._targets if not one.is_elastic or one.name in self._running]
        first, endpoints = await first_endpoints(existing)
        info = endpoints.info
        await compiling  # before steps are timed
        costs = await _measure_step_costs(first, info, options)
        trained = None if info.drafter is None else info.drafter.method
        speculators = replace(speculators, step_costs=costs, trained=trained)
        draft_client = _make_draft_client(speculators, placement, info)
        check_needs(draft_client.needs(options.method), info.spec)  # an unusable default must fail the start
        reports = Reports(ProcessMetrics("router", ray.util.get_node_ip_address()))
        metrics = (reports, CertificateMetrics(options.model, os.environ), replacements)
        learn = None if self._retrieval is None else self._retrieval.learn
        clients = [target.client(info, costs) for target in self._targets]
        tracer = tracer_of(options.traces, "Router")
        spans = None if tracer is None else RequestSpans(tracer)
        self._router = Router(options, info, draft_client, clients, learn, costs, metrics, spans)
        # The previous router serves until Serve counts this one as up, and sends the ingresses here.
        self._takeover = asyncio.get_running_loop().call_later(TAKEOVER_S, self._take_over)
        methods = _offer_methods(options, info, speculators, draft_client)
        self._card = _make_card(options, info, costs, aliases, methods)
        self._submissions = SubmissionServer(self._router.stream, self._problem, reports=reports, card=self._card)
        gc.collect()
        gc.freeze()  # drafting allocates many small objects; full collections must not visit everything loaded

    async def __del__(self) -> None:
        """Serve awaits this when it stops the replica in an orderly way.

        New requests go to the next router at once. Running ones continue here until they end, the next router takes the
        pipelines over, or the grace is over. The next router resumes those that are left.
        """
        submissions = getattr(self, "_submissions", None)  # missing when the constructor failed
        if submissions is None:
            return
        self._takeover.cancel()
        self._router.hand_over()
        await submissions.drain(self._router.options.grace, lambda: self._router.is_ready)

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Set the bounds of the number of pipelines; Serve calls this when the deployment's ``user_config`` changes.

        A wrong ``user_config`` is logged and changes nothing: Serve would replace a router that raises.
        """
        try:
            least, most = bounds_of(user_config, self._scaling)
        except ConfigError as error:
            logger.error("%s; the bounds stay as they are", error)
            return
        if self._scaling.least < self._scaling.most:
            logger.info("the number of pipelines is now from %d to %d", least, most)
        self._router.scaler.set_bounds(least, most)

    def _take_over(self) -> None:
        """Take the pipelines over, once."""
        if not self._takeover.cancelled():
            self._takeover.cancel()
            # In an empty context: Serve would cancel the lanes' calls with the request that came first.
            contextvars.Context().run(self._router.start, self._running)

    async def attach(self, node: str) -> Attachment:
        """Address and secret for an ingress on the Ray node with the id ``node``; takes the pipelines over."""
        self._take_over()
        is_here = node == ray.get_runtime_context().get_node_id()
        return await self._submissions.attachment(None if is_here else ray.util.get_node_ip_address())

    async def card(self) -> ModelCard:
        return self._card

    def _problem(self) -> str:
        """Why a request sent now would not be served; "": at least one pipeline is up."""
        if self._is_draining:
            return "the server is being stopped"
        if self._router.is_ready:
            return ""
        return "; ".join(target.problem for target in self._targets if target.problem) or "no pipeline is up"

    async def health(self) -> Health:
        state, problem = await self._router.state(), self._problem()
        detail: dict[str, str | int | float | bool] = {"router_pid": os.getpid(), "max_nodes": self._card.max_nodes}
        detail |= {name: value for name, value in state.items() if name != "ready"}
        detail |= {} if self._retrieval is None else self._retrieval.detail()
        return Health(ok=not problem, reason=problem, detail=detail)

    async def check_health(self) -> None:
        """Serve calls this periodically, and replaces the replica when it raises; the next one serves the new model.

        Raises:
            ModelChangedError: no pipeline is up, and an existing one has another model than this router.
        """
        changed = [target for target in self._targets if target.has_other_model]
        if changed and not self._router.is_ready:
            raise ModelChangedError("; ".join(f"{target.name}: {target.problem}" for target in changed))

    async def drain(self) -> None:
        """Report that this server is not ready from now on; it still serves requests that arrive."""
        self._is_draining = True

    async def close(self) -> None:
        """Stop serving because the application ends: running streams get an error, and wait for no other router."""
        await self._router.close()

    async def metrics(self) -> str:
        """Prometheus exposition text."""
        return self._router.metrics_text() + ("" if self._retrieval is None else self._retrieval.metrics_text())


async def _measure_step_costs(target: ServeTarget, info: TargetInfo, options: RouterOptions) -> StepCosts | None:
    """Step times of the target, from the cache or measured; None: not measured."""
    cost_file = str(costs_file(f"{options.cost_file}-{info.identity.numbers}")) if options.cost_file else ""
    return await step_costs(partial(target.connect, info), cost_file, info, options.step_deadline, target.report_hang)


def _offer_methods(
    options: RouterOptions, info: TargetInfo, speculators: SpeculatorOptions, draft_client: DraftClient
) -> tuple[str, ...]:
    """Methods that requests may name; a simulated target has no states, so only those that need none."""
    names = available(speculators)
    if info.spec.family == SIMULATED:
        names = tuple(name for name in names if draft_client.needs(name) == Needs())
    return offered_methods(options, names)


def _make_card(
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
