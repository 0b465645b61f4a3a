"""Builds Ray Serve's options of each deployment: resources, health checks, replacement and shutdown."""

from __future__ import annotations

from typing import Any

from app.config.serve import ServeConfig

UNLIMITED = 100_000  # max_ongoing_requests (Serve's default is 5): the scheduler decides how many requests run
HUNG_S = 3.0  # an event loop that does not answer a health check for this long hangs
CLOSING_S = 5.0  # for a replica to close after its requests have ended or run out of time
CPUS = 0.1  # of a replica that mostly waits, so that a laptop can hold the application


def of_target(config: ServeConfig) -> dict[str, Any]:
    """Return the options of a target, without the placement of its stages."""
    return {"ray_actor_options": {"num_cpus": CPUS}, **_watched(config)}


def of_retrieval(config: ServeConfig) -> dict[str, Any]:
    """Return the options of the retrieval service. Its readers poll forever, so shutdown does not wait for them."""
    return _common(config) | _edge_node(config) | {"graceful_shutdown_timeout_s": 0.1}


def of_router(config: ServeConfig) -> dict[str, Any]:
    """Return the options of the router.

    A new router starts before the old one stops, unless drafters need GPUs that the old one still holds.
    """
    surge = 0 if config.speculator_gpus else 100
    more = {"max_surge_percent": surge, "user_config": {}}  # {}: Serve reports when a config file drops user_config
    return _watched(config) | _edge_node(config) | more


def of_ingress(config: ServeConfig) -> dict[str, Any]:
    """Return the options of the HTTP processes that clients connect to."""
    more = {
        "num_replicas": config.ingress_replicas,
        "max_surge_percent": 100,
        "graceful_shutdown_timeout_s": config.drain + CLOSING_S,
    }
    return _watched(config) | _edge_node(config) | more


def _common(config: ServeConfig) -> dict[str, Any]:
    return {
        "max_ongoing_requests": UNLIMITED,
        "health_check_period_s": 1.0,
        "graceful_shutdown_wait_loop_s": 0.1,
        "graceful_shutdown_timeout_s": config.grace + CLOSING_S,
        # The ingress logs requests itself, with more detail; Serve would also log each health check.
        "logging_config": {"log_level": config.log_level.upper(), "enable_access_log": False},
    }


def _watched(config: ServeConfig) -> dict[str, Any]:
    """Serve replaces a replica after three unanswered health checks; with Serve's default this takes 90 seconds."""
    return _common(config) | {"health_check_timeout_s": HUNG_S}


def _edge_node(config: ServeConfig) -> dict[str, Any]:
    """Keeps connections of clients off the nodes of stages, which come, go and fail with their GPUs."""
    return {"ray_actor_options": {"num_cpus": CPUS, "resources": dict(config.edge_resources)}}
