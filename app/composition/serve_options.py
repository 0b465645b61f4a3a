"""Builds Ray Serve's options of each deployment: resources, health checks, replacement and shutdown."""

from __future__ import annotations

from typing import Any

from app.config.serve import ServeConfig

UNLIMITED = 100_000  # max_ongoing_requests (Serve's default is 5): the scheduler decides how many requests run
HUNG_S = 3.0  # timeout of a health check; Serve replaces a replica after three: by default that takes 90 seconds
CLOSING_S = 5.0  # for a replica to close after its requests have ended or run out of time
CPUS = 0.1  # of a replica that mostly waits, so that a laptop can hold the application


def serve_options(config: ServeConfig) -> dict[str, dict[str, Any]]:
    """Return the options by deployment; those of Target lack the placement of its stages."""
    common = {
        "ray_actor_options": {"num_cpus": CPUS},
        "max_ongoing_requests": UNLIMITED,
        "health_check_period_s": 1.0,
        "graceful_shutdown_wait_loop_s": 0.1,
        "graceful_shutdown_timeout_s": config.grace + CLOSING_S,
        # The ingress logs requests itself, with more detail; Serve would also log each health check.
        "logging_config": {"log_level": config.log_level.upper(), "enable_access_log": False},
    }
    # Nodes of stages come, go and fail with their GPUs; connections of clients should not be on them.
    edge = common | {"ray_actor_options": {"num_cpus": CPUS, "resources": dict(config.edge_resources)}}
    watched = {"health_check_timeout_s": HUNG_S}
    router: dict[str, Any] = {
        # A new router starts before the old one stops, unless drafters need the GPUs that the old one holds.
        "max_surge_percent": 0 if config.speculator_gpus else 100,
        "user_config": {},  # Serve then reports when a config file drops its user_config
    }
    ingress = {
        "num_replicas": config.ingress_replicas,
        "max_surge_percent": 100,
        "graceful_shutdown_timeout_s": config.drain + CLOSING_S,
    }
    return {
        "Target": common | watched,
        "Router": edge | watched | router,
        "Ingress": edge | watched | ingress,
        "AnswerKeeper": edge | watched,
        "Retrieval": edge | {"graceful_shutdown_timeout_s": 0.1},  # its readers poll forever: do not wait for them
    }
