"""Ports, Ray's authentication, and the store of snapshots."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from app.doctor.findings import OK, PROBLEM, WARNING, Finding
from app.inputs.stores import open_store_at
from app.serving.environment import PORTS, PORTS_EACH, check_port, claim_ports
from engine.errors import ConfigError
from retrieval_store.errors import StoreError
from retrieval_store.stores.open import shown

FLAG = "--redis"
TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def ports(host: str, port: int) -> Iterator[Finding]:
    """The one that clients reach, and those of processes behind it."""
    try:
        check_port(host, port)
    except ConfigError as error:
        yield Finding("port", PROBLEM, str(error))
    else:
        yield Finding("port", OK, f"{port} on {host} is free")
    try:
        with closing(claim_ports()) as claimed:
            first = claimed.getsockname()[1]
    except ConfigError as error:
        yield Finding("ports behind", PROBLEM, str(error), "other servers of this machine hold them")
    else:
        yield Finding("ports behind", OK, f"{PORTS_EACH} of {PORTS[0]} to {PORTS[1]} are free, as {first} and on")


def ray_authentication() -> Finding:
    """A server of its own makes a token; an environment may forbid that, or name one for a cluster."""
    mode = os.environ.get("RAY_AUTH_MODE", "")
    if mode and mode != "token":
        remedy = "unset it: replicas listen on every interface and unpickle what comes"
        return Finding("ray token", WARNING, f"RAY_AUTH_MODE is {mode!r}", remedy)
    path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    if path and not os.access(Path(path).expanduser(), os.R_OK):
        return Finding(
            "ray token", PROBLEM, f"RAY_AUTH_TOKEN_PATH is {path!r}, which cannot be read", "mend or unset it"
        )
    if any(name in os.environ for name in TOKENS):
        return Finding("ray token", OK, "of the environment")
    return Finding("ray token", OK, "each `spectra serve` draws its own; a cluster needs one (docs/security.md)")


def store(url: str, namespace: str) -> Finding:
    """Whether the store of ``--redis`` answers; passwords are not shown.

    Raises:
        ConfigError: ``url`` is no address of a store.
    """
    with closing(open_store_at(url, namespace, FLAG)) as opened:
        try:
            current = opened.current()
        except StoreError as error:
            remedy = "a server would start without it, and ask again"
            return Finding("redis", PROBLEM, f"does not answer: {error}", remedy)
    says = "no version is published" if not current.version else f"current version {current.version}"
    return Finding("redis", OK, f"{shown(url)}, namespace {namespace}: {says}")
