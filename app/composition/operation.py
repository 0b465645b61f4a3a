"""From a configuration to who may ask for what, and to what is told of it: access, logs, traces."""

from __future__ import annotations

from pathlib import Path

from app.access.caller import AccessOptions
from app.access.key_file import read_records
from app.config.serve import ServeConfig
from deployments.observability.logs import LogOptions
from deployments.observability.traces import TraceOptions, can_export
from engine.errors import ConfigError


def access_options(config: ServeConfig) -> AccessOptions:
    """Who may ask for what. Reads the file of keys, to find out whether it is right.

    Raises:
        ConfigError: the file of keys cannot be read, or a record is wrong.
    """
    keys = None
    if config.api_keys is not None:
        keys = Path(config.api_keys).expanduser().absolute()
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
    """How every process of the application logs."""
    return LogOptions(config.log_format, config.log_level, config.access_log, config.log_prompts)


def trace_options(config: ServeConfig) -> TraceOptions:
    """Where ingresses and router send the spans of requests.

    Raises:
        ConfigError: they shall, but the exporter is not installed.
    """
    if config.traces and not can_export():
        raise ConfigError("traces (--traces) is true, but there is no exporter: pip install 'spectra-serve[traces]'")
    return TraceOptions(config.traces, config.otlp_endpoint or "")
