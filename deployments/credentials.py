"""Checks the store's credentials, which every node has in its environment, and no configuration contains.

A node without them fails at the start with a clear error; otherwise Redis would refuse it again and again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from engine.errors import ConfigError
from retrieval_store.stores.redis_url import CREDENTIALS


def credentials_set(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Names, never values, of the credentials in this process's environment."""
    return tuple(name for name in CREDENTIALS if environment.get(name))


def check_credentials(names: Sequence[str], node: str, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a node that lacks a credential which the node that built the application had.

    Args:
        names: from ``credentials_set`` on that node.
        node: address of this node, for the message.
        environment: of this process.

    Raises:
        ConfigError: names the variable and the node.
    """
    missing = [name for name in names if not environment.get(name)]
    if missing:
        raise ConfigError(
            f"node {node} has no {missing[0]} in its environment, but the node that built the application has; set it "
            "on every node where retrieval or the answer keeper may run, before Ray starts there"
        )
