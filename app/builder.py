"""Composition: plain classes become Serve deployments here, and nowhere else."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve import Application

from app.api.edge import EdgeOptions, make_edge
from app.composition.checks import checked, pinned
from app.composition.operation import access_options, log_options, trace_options
from app.composition.pipeline import pipeline_options, router_options, target_options
from app.composition.retrieval import retrieval_options
from app.composition.speculation import check_served_drafter, placement, served_speculators
from app.config.errors import config_of
from app.config.serve import ServeConfig
from app.inputs.models import target_name
from app.version import VERSION
from deployments.ingress.deployment import Ingress
from deployments.retrieval.deployment import RetrievalDeployment
from deployments.router.deployment import RouterDeployment
from deployments.target.deployment import TargetDeployment, replica_placement

UNLIMITED = 100_000  # max_ongoing_requests: admission is the scheduler's business (Serve's default is 5)
HUNG_S = 3.0  # that an event loop may take to say that it is alive
CLOSING_S = 5.0  # that a replica may take for the rest once its requests have ended, or their time has
CPUS = 0.1  # of a replica that mostly waits, so that a laptop can hold the application


def target_names(n: int) -> list[str]:
    """Names of the deployments that own a pipeline each; lanes are called the same."""
    return ["Target", *(f"Target-{i}" for i in range(2, n + 1))]


def build_app(args: ServeConfig | dict[str, Any]) -> Application:
    """The application of a configuration, or of the plain keys that Ray hands over.

    ``serve run app.builder:build_app model=... method=...`` and a RayService's ``args`` work.

    Raises:
        ConfigError: a key or value is wrong, or a model, drafter or library is not there.
        UnknownMethodError: the method is unknown or not available yet.
        UnsupportedModelError: a model cannot be run.
    """
    config = pinned(checked(args if isinstance(args, ServeConfig) else config_of(args)))
    check_served_drafter(config)
    target, pipeline = target_options(config), pipeline_options(config)
    logs = log_options(config)
    common: dict[str, Any] = {
        "max_ongoing_requests": UNLIMITED,
        "health_check_period_s": 1.0,
        "graceful_shutdown_wait_loop_s": 0.1,
        "graceful_shutdown_timeout_s": config.grace + CLOSING_S,
        "ray_actor_options": {"num_cpus": CPUS},
        # Serve's line per request says less than the ingress's own, and there is one for every health check.
        "logging_config": {"log_level": logs.level.upper(), "enable_access_log": False},
    }
    # Three unanswered health checks, and Serve replaces a replica that hangs; by default they take 90 seconds.
    nimble = common | {"health_check_timeout_s": HUNG_S}
    placed = replica_placement(pipeline, target.stages, CPUS)
    targets = [
        # A deployment each, not a replica: so a lane can name the pipeline that it wants to reach.
        serve.deployment(TargetDeployment, name=name, **nimble, **placed).bind(target, pipeline)
        for name in target_names(config.replicas)
    ]
    served = retrieval_options(config)
    # Readers always have a question open: there is nothing to wait for at shutdown.
    brief = common | {"graceful_shutdown_timeout_s": 0.1}
    retrieval = served and serve.deployment(RetrievalDeployment, name="Retrieval", **brief).bind(served)
    # The new one is up before the old one is stopped; where drafters need GPUs, a second router would wait for them.
    surging = nimble | {"max_surge_percent": 0 if config.speculator_gpus else 100}
    router = serve.deployment(RouterDeployment, name="Router", **surging).bind(
        targets,
        router_options(config),
        served_speculators(config),
        placement(config),
        retrieval=retrieval,
        retrieved=served,
    )
    edge = EdgeOptions(
        target_name(config.model),
        config.revision,
        VERSION,
        config.default_max_tokens,
        int(config.max_body_mib * 2**20),
        logs,
        config.draft_nodes,
        config.retrieval_namespace,
        access_options(config),
        trace_options(config),
    )
    draining = nimble | {"max_surge_percent": 100, "graceful_shutdown_timeout_s": config.drain + CLOSING_S}
    replicas = config.ingress_replicas
    ingress = serve.deployment(serve.ingress()(Ingress), name="Ingress", num_replicas=replicas, **draining)
    return ingress.bind(router, make_edge, edge, config.router_patience)
