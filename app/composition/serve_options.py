"""Ray Serve's own options of every deployment: resources, health checks, how it is replaced and stopped."""

from __future__ import annotations

from typing import Any

from app.composition.operation import log_options
from app.config.serve import ServeConfig

UNLIMITED = 100_000  # max_ongoing_requests: admission is the scheduler's business (Serve's default is 5)
HUNG_S = 3.0  # that an event loop may take to say that it is alive
CLOSING_S = 5.0  # that a replica may take for the rest once its requests have ended, or their time has
CPUS = 0.1  # of a replica that mostly waits, so that a laptop can hold the application


def of_target(config: ServeConfig) -> dict[str, Any]:
    """Of a target, but for the placement of its stages."""
    return {"ray_actor_options": {"num_cpus": CPUS}, **_watched(config)}


def of_retrieval(config: ServeConfig) -> dict[str, Any]:
    """Of retrieval. Readers always have a question open: there is nothing to wait for at shutdown."""
    return _common(config) | _edge_node(config) | {"graceful_shutdown_timeout_s": 0.1}


def of_router(config: ServeConfig) -> dict[str, Any]:
    """Of the router. The new one is up before the old one is stopped; where drafters need GPUs, a second router would
    wait for them."""
    return (
        _watched(config)
        | _edge_node(config)
        | {
            "max_surge_percent": 0 if config.speculator_gpus else 100,
            "user_config": {},  # so that Serve tells the router when a config file no longer has one
        }
    )


def of_ingress(config: ServeConfig) -> dict[str, Any]:
    """Of the HTTP processes, which clients are connected to."""
    return (
        _watched(config)
        | _edge_node(config)
        | {
            "num_replicas": config.ingress_replicas,
            "max_surge_percent": 100,
            "graceful_shutdown_timeout_s": config.drain + CLOSING_S,
        }
    )


def _common(config: ServeConfig) -> dict[str, Any]:
    return {
        "max_ongoing_requests": UNLIMITED,
        "health_check_period_s": 1.0,
        "graceful_shutdown_wait_loop_s": 0.1,
        "graceful_shutdown_timeout_s": config.grace + CLOSING_S,
        # Serve's line per request says less than the ingress's own, and there is one for every health check.
        "logging_config": {"log_level": log_options(config).level.upper(), "enable_access_log": False},
    }


def _watched(config: ServeConfig) -> dict[str, Any]:
    """Three unanswered health checks, and Serve replaces a replica that hangs; by default they take 90 seconds."""
    return _common(config) | {"health_check_timeout_s": HUNG_S}


def _edge_node(config: ServeConfig) -> dict[str, Any]:
    """Nodes of stages come, go and fail with their GPUs; connections of clients should not go with them."""
    return {"ray_actor_options": {"num_cpus": CPUS, "resources": dict(config.edge_resources)}}
