"""How a served application ends: running requests first, then the streams that outlast the grace, then the replicas."""

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
UNDEPLOY_S = 20.0  # for Serve to take all replicas down, beside the grace
FLUSH_S = 0.2  # for their last events to reach the clients


@cache
def handle_of(deployment: str) -> Any:
    """Serve's handle of a deployment, for calls of this process, in which no event loop runs."""
    from ray import serve

    handle = serve.get_deployment_handle(deployment, APP_NAME)  # the same one each time, which is made ready once
    handle._init(_run_router_in_separate_loop=True)
    return handle


class GracefulShutdown:
    """The end of an application.

    Args:
        base: URL of the server.
        client: makes a client for it, with a timeout in seconds.
        grace: seconds that running requests get.
        is_local: whether Serve ends with the application.
    """

    def __init__(self, base: str, client: Callable[[float], httpx.Client], grace: float, *, is_local: bool) -> None:
        self._base = base
        self._client = client
        self._grace = grace
        self._is_local = is_local

    def end(self) -> None:
        """Let running requests end, for the grace at most, end the streams of the others with an error, and take the
        application down."""
        if controller_answers():
            self._tell_router("drain")
        is_drained = self._drained(self._grace)
        redirect_messages()
        if controller_answers():
            if not is_drained:
                self._fail_streams()
            self._undeploy()

    def _undeploy(self) -> None:
        """A client that does not read its last event may keep an HTTP process of ours for the grace at most."""
        from ray import serve

        def take_down() -> None:
            with contextlib.suppress(Exception):  # on the way out: nothing may keep us here
                if self._is_local:
                    serve.shutdown()
                else:
                    serve.delete(APP_NAME)

        leaving = threading.Thread(target=take_down, daemon=True)
        leaving.start()
        leaving.join(self._grace + UNDEPLOY_S)

    def _drained(self, within: float) -> bool:
        """Wait for running requests, at most ``within`` seconds; False: some still run. Serve would not wait for them:
        it takes the stages down first, and breaks their streams off."""
        deadline = time.monotonic() + within
        with self._client(1.0) as client:
            while self._has_sessions(client):
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.05)
        return True

    def _has_sessions(self, client: httpx.Client) -> bool:
        try:
            # Without a figure the router is too busy to answer, or gone, and its requests wait for the next one.
            return bool(client.get(f"{self._base}/health").json().get("sessions", True))
        except httpx.TimeoutException:
            return True  # it may be too busy to answer
        except (httpx.HTTPError, ValueError):
            return False

    def _fail_streams(self) -> None:
        """Have the router end all streams with an error event, which clients tell from an answer that is complete."""
        if self._tell_router("close"):
            self._drained(CLOSE_S)
            time.sleep(FLUSH_S)

    def _tell_router(self, method: str) -> bool:
        """Call a method of the router; returns whether it did it."""
        try:
            handle_of(ROUTER).options(method_name=method).remote().result(timeout_s=CLOSE_S)
        except Exception:  # on the way out: nothing may keep us here
            return False
        return True
