"""Composition: plain classes become Serve deployments here, and nowhere else."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve import Application

import spectra_serve  # noqa: F401 - Serve may import this module first; it prepares the process
from app.api.edge import EdgeOptions, load_edge
from app.api.service import MEBI, ServiceSettings
from app.composition.answers import answer_options
from app.composition.checks import checked, pinned
from app.composition.operation import access_options, log_options, playground_options, trace_options
from app.composition.pipeline import aliases, pipeline_options, router_options, target_options
from app.composition.retrieval import retrieval_options
from app.composition.sampling import sampling_defaults
from app.composition.serve_options import CPUS, serve_options
from app.composition.speculation import check_served_drafter, placement, served_speculators
from app.config.errors import config_of
from app.config.serve import ServeConfig
from app.inputs.models import target_name
from app.version import VERSION
from deployments.answers.deployment import AnswerKeeperDeployment
from deployments.ingress.deployment import Ingress
from deployments.retrieval.deployment import RetrievalDeployment
from deployments.router.deployment import RouterDeployment
from deployments.target_model.deployment import TargetDeployment, replica_placement
from deployments.target_model.elastic import elastic


def target_names(n: int) -> list[str]:
    """Names of the deployments that own a pipeline each; lanes are called the same."""
    return ["Target", *(f"Target-{i}" for i in range(2, n + 1))]


def build_app(args: ServeConfig | dict[str, Any]) -> Application:
    """The application of a configuration, or of the plain keys that Ray hands over.

    ``serve run app.builder:build_app model=... method=...`` and a RayService's ``args`` work. In a folder that has
    packages of our names, only ``spectra_serve:build_app`` does.

    Raises:
        ConfigError: a key or value is wrong, or a model, drafter or library is not there.
        UnknownMethodError: the method is unknown or not available yet.
        UnsupportedModelError: a model cannot be run.
    """
    return application(args if isinstance(args, ServeConfig) else config_of(args))


def application(config: ServeConfig, *, is_private: bool = False) -> Application:
    """The application of a configuration; raises as ``build_app``.

    Args:
        config: of the application.
        is_private: only this machine's users reach its HTTP port, and its Ray is its own: with the default model, the
            page for operators may then kill processes.
    """
    config = pinned(checked(config))
    check_served_drafter(config)
    options = serve_options(config)
    served = retrieval_options(config)
    retrieval = served and serve.deployment(RetrievalDeployment, name="Retrieval", **options["Retrieval"]).bind(served)
    router = serve.deployment(RouterDeployment, name="Router", **options["Router"]).bind(
        _targets(config),
        router_options(config),
        served_speculators(config),
        placement(config),
        aliases(config),
        retrieval=retrieval,
        retrieved=served,
    )
    kept = answer_options(config)
    keeping = serve.deployment(AnswerKeeperDeployment, name="AnswerKeeper", **options["AnswerKeeper"])
    keeper = kept and keeping.bind(router, kept)
    ingress = serve.deployment(serve.ingress()(Ingress), name="Ingress", **options["Ingress"])
    return ingress.bind(router, load_edge, _edge(config, is_private), config.router_patience, keeper)


def _targets(config: ServeConfig) -> list[Application]:
    """A deployment each, not a replica: so a lane can name the pipeline that it wants to reach."""
    target, pipeline = target_options(config), pipeline_options(config)
    usual = serve_options(config)["Target"] | replica_placement(pipeline, target, CPUS)
    n = config.most_pipelines
    scaled: list[dict[str, Any]] = [{} if i < config.least_pipelines else elastic() for i in range(n)]
    return [
        serve.deployment(TargetDeployment, name=name, **usual, **more).bind(target, pipeline)
        for name, more in zip(target_names(n), scaled, strict=True)
    ]


def _edge(config: ServeConfig, is_private: bool) -> EdgeOptions:
    sampling = sampling_defaults(config)
    logs = log_options(config)
    settings = ServiceSettings(
        version=VERSION,
        max_body_bytes=int(config.max_body_mib * MEBI),
        default_max_tokens=int(sampling.pop("max_tokens", config.default_max_tokens)),
        sampling=sampling,
        access_log=logs.access,
        log_prompts=logs.prompts,
        tool_parser=config.tool_parser,
        reasoning_parser=config.reasoning_parser,
        shared_namespace=config.retrieval_namespace,
    )
    playground = playground_options(config, is_private=is_private)
    access, traces = access_options(config), trace_options(config)
    return EdgeOptions(target_name(config.model), config.revision, settings, logs, access, traces, playground)
