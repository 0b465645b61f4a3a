"""Who may ask for what, as an ingress replica is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """At most one of ``api_keys``, ``tenant_header`` and ``trust_clients`` says who a caller is or what it may ask."""

    api_keys: str | None = None  # path of the file of keys
    tenant_header: str | None = None  # set by a gateway
    trust_clients: bool = False
    open_metrics: bool = False
    cors_origins: tuple[str, ...] = ()
    replicas: int = 1  # processes that share the limits of a key
