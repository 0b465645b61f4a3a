"""Checks ports, Ray's authentication and the store of snapshots."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from app.doctor import Finding
from app.inputs.stores import open_store_at
from app.serving.environment import PORTS, PORTS_EACH, check_port, claim_ports
from engine.errors import ConfigError
from retrieval_store.errors import StoreError
from retrieval_store.stores.open import shown


def check_ports(host: str, port: int) -> Iterator[Finding]:
    """Yield whether the port for clients is free, and a range for the processes behind it."""
    try:
        check_port(host, port)
        yield Finding("port", "ok", f"{port} on {host} is free")
    except ConfigError as error:
        yield Finding("port", "problem", str(error))
    try:
        with closing(claim_ports()) as claimed:
            first = claimed.getsockname()[1]
        says = f"{PORTS_EACH} ports from {first} on are free, within {PORTS[0]} to {PORTS[1]}"
        yield Finding("replica ports", "ok", says)
    except ConfigError as error:
        yield Finding("replica ports", "problem", str(error), "stop another server of this machine")


def check_ray_token() -> Finding:
    """Return whether the environment turns off the token of a server's own Ray, or names one for a cluster."""
    mode, path = os.environ.get("RAY_AUTH_MODE") or "token", os.environ.get("RAY_AUTH_TOKEN_PATH")
    if mode != "token":
        remedy = "unset it: without a token, replicas accept pickled calls from anyone who reaches the machine"
        return Finding("ray token", "warning", f"RAY_AUTH_MODE is {mode!r}", remedy)
    if path and not os.access(Path(path).expanduser(), os.R_OK):
        says = f"RAY_AUTH_TOKEN_PATH is {path!r}, which cannot be read"
        return Finding("ray token", "problem", says, "make the file readable, or unset the variable")
    if path is not None or "RAY_AUTH_TOKEN" in os.environ:
        return Finding("ray token", "ok", "set in the environment")
    return Finding("ray token", "ok", "each `spectra serve` makes its own; a cluster needs one")


def check_store(url: str, namespace: str) -> Finding:
    """Return whether the store of ``--redis`` answers; raises ConfigError if ``url`` is no address of a store."""
    with closing(open_store_at(url, namespace, "--redis")) as opened:
        try:
            current = opened.current()
        except StoreError as error:
            remedy = "a server would start without it, and retry"
            return Finding("redis", "problem", f"does not answer: {error}", remedy)
    says = f"current version {current.version}" if current.version else "no version is published"
    return Finding("redis", "ok", f"{shown(url)}, namespace {namespace}: {says}")
