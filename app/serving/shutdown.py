"""Stops an application: running requests first, then the streams that outlast the grace period, then the replicas."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import httpx

from app.serving.ray_session import controller_answers, redirect_messages

APP_NAME = "spectra"
ROUTER = "Router"  # name of the router's deployment, as in ``app.builder``
CLOSE_S = 2.0  # for the router to end the streams that outlast the grace period
UNDEPLOY_S = 20.0  # for Serve to stop all replicas, in addition to the grace period
FLUSH_S = 0.2  # for the last events to reach the clients


@cache
def handle_of(deployment: str) -> Any:
    """Return Serve's handle of a deployment, for calls of this process, in which no event loop runs."""
    from ray import serve

    handle = serve.get_deployment_handle(deployment, APP_NAME)  # cached, because only the first use sets it up
    handle._init(_run_router_in_separate_loop=True)
    return handle


def stop_application(base: str, client: Callable[[float], httpx.Client], grace: float, *, is_local: bool) -> None:
    """Let running requests finish, end the streams of the others with an error event, and undeploy the application.

    Serve alone would not wait for requests: it stops the stages first, and breaks their streams off.

    Args:
        base, client: as for ``wait_until_ready``.
        grace: seconds that running requests may still take.
        is_local: whether Serve stops with the application.
    """
    if controller_answers():
        _call_router("drain")
    is_drained = _wait_until_drained(base, client, grace)
    redirect_messages()
    if not controller_answers():
        return
    if not is_drained and _call_router("close"):
        _wait_until_drained(base, client, CLOSE_S)
        time.sleep(FLUSH_S)
    undeploying = threading.Thread(target=_undeploy, args=(is_local,), daemon=True)
    undeploying.start()  # a client that does not read its last event may keep an HTTP process for the grace period
    undeploying.join(grace + UNDEPLOY_S)


def _wait_until_drained(base: str, client: Callable[[float], httpx.Client], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    with client(1.0) as http:
        while _has_sessions(http, base):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
    return True


def _has_sessions(http: httpx.Client, base: str) -> bool:
    try:
        # A router that reports no number is too busy or being replaced; its requests still wait.
        return bool(http.get(f"{base}/health").json().get("sessions", True))
    except httpx.TimeoutException:
        return True  # it may be too busy to answer
    except (httpx.HTTPError, ValueError):
        return False


def _call_router(method: str) -> bool:
    try:
        handle_of(ROUTER).options(method_name=method).remote().result(timeout_s=CLOSE_S)
    except Exception:  # nothing may stop the shutdown
        return False
    return True


def _undeploy(is_local: bool) -> None:
    from ray import serve

    with contextlib.suppress(Exception):  # nothing may stop the shutdown
        serve.shutdown() if is_local else serve.delete(APP_NAME)
