"""Builds the options of access, logs, traces and playground from a configuration."""

from __future__ import annotations

from pathlib import Path

from app.access.caller import AccessOptions
from app.access.key_file import read_records
from app.config.serve import ServeConfig
from app.inputs.default_model import DEFAULT_MODEL
from app.playground.options import PlaygroundOptions, Victim
from deployments.observability.logs import LogOptions
from deployments.observability.traces import TraceOptions
from engine.errors import require_extra


def access_options(config: ServeConfig) -> AccessOptions:
    """Return who may send which requests; raise ConfigError if the key file cannot be read or a record is wrong."""
    keys = None if config.api_keys is None else Path(config.api_keys).expanduser().absolute()
    if keys is not None:
        read_records(keys)
    return AccessOptions(
        api_keys=None if keys is None else str(keys),
        tenant_header=config.tenant_header,
        trust_clients=config.trust_clients,
        open_metrics=config.open_metrics,
        cors_origins=config.origins,
        replicas=config.ingress_replicas,
    )


def log_options(config: ServeConfig) -> LogOptions:
    return LogOptions(config.log_format, config.log_level, config.access_log, config.log_prompts)


def trace_options(config: ServeConfig) -> TraceOptions:
    """Return where ingresses and router send spans; raise ConfigError if the exporter is needed but not installed."""
    endpoint = config.otlp_endpoint
    if endpoint:
        require_extra("traces", "otlp_endpoint (--otlp-endpoint)")
    return TraceOptions(bool(endpoint), "" if endpoint in (None, "env") else str(endpoint))


def playground_options(config: ServeConfig, *, is_private: bool) -> PlaygroundOptions | None:
    """Return what the pages of an ingress replica show; None: it serves no page.

    Args:
        is_private: only users of this machine reach the HTTP port, and the server started its own Ray. With the default
            model, and if nothing restricts access, the operator page may then kill processes.
    """
    if not config.playground:
        return None
    is_default, keeps_answers = config.model == DEFAULT_MODEL, config.answers_per_tenant > 0
    is_open = config.api_keys is None and config.tenant_header is None and not config.origins
    is_one = config.ingress_replicas == config.most_pipelines == 1  # a page's token is valid in one process
    if not (is_default and is_private and is_open and is_one):
        return PlaygroundOptions(is_default, keeps_answers)
    parts = (
        ("ingress", 1),
        ("keeper", int(keeps_answers)),
        ("router", 1),
        ("stage", config.stages * config.tensor_parallel),
        ("speculator", config.speculator_actors),
    )
    victims = tuple(Victim(part, i) for part, n in parts for i in range(n))
    return PlaygroundOptions(is_default, keeps_answers, victims)
