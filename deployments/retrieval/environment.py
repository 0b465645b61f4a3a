"""Credentials of the store travel in no configuration: each node has them in its environment, and one that lacks them
says so at the start, where Redis would only refuse it again and again."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from engine.errors import ConfigError
from retrieval_store.stores.redis_url import CREDENTIALS


def credentials_set(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Names, never values, of the credentials that this process has."""
    return tuple(name for name in CREDENTIALS if environment.get(name))


def check_credentials(names: Sequence[str], node: str, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a node without a credential that the node had where the application was built.

    Args:
        names: from ``credentials_set`` there.
        node: this one, for the message.
        environment: of this process.

    Raises:
        ConfigError: names the variable and the node.
    """
    missing = [name for name in names if not environment.get(name)]
    if missing:
        raise ConfigError(
            f"node {node} has no {missing[0]} in its environment, as the node has that built the application: set it "
            "on every node where retrieval may run, before Ray starts there"
        )
