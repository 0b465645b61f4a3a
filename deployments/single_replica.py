"""Deployments that have state of their own and take one replica; Serve itself would start any number of them."""

from __future__ import annotations

from ray import serve

from engine.errors import ConfigError


def check_single_replica(instead: str) -> None:
    """To be called by the constructor of such a deployment.

    Args:
        instead: how to scale what the deployment does.

    Raises:
        ConfigError: Serve has been told to run several replicas of the deployment.
    """
    replica = serve.get_replica_context()
    if replica.world_size > 1:
        raise ConfigError(f"{replica.deployment}.num_replicas is {replica.world_size}; it must be 1: {instead}")
