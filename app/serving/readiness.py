"""Waits until a deployed application takes requests, and reports why it does not start."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import httpx

from app.serving.progress import StartProgress, phases_of
from app.serving.ray_session import log_folder
from app.serving.shutdown import APP_NAME, handle_of
from engine.errors import ConfigError

READY_S = 600.0  # a large model may load for minutes
ASK_S = 0.3  # between two questions, which take CPU time here and in Serve's controller
STATE_S = 2.0  # for a target that is up to report the times of its start
TARGET = "Target"  # prefix of the names of targets' deployments, as in ``app.builder``


def wait_until_ready(
    base: str, client: Callable[[float], httpx.Client], progress: StartProgress, stop: threading.Event
) -> None:
    """Return once a request would succeed, or a signal has set ``stop``; print the state of every deployment meanwhile.

    Raises ConfigError if the application does not start; the message gives the reason if Serve knows it.

    Args:
        base: URL of the server.
        client: returns a client for it, given a timeout in seconds.
    """
    deadline = time.monotonic() + READY_S
    with client(30.0) as http:
        while time.monotonic() < deadline and not stop.is_set():
            # An earlier request would block: the proxy keeps it until a replica can take it.
            if _is_running(progress):
                with contextlib.suppress(httpx.HTTPError):
                    if http.get(f"{base}/ready").status_code == httpx.codes.OK:
                        return
            stop.wait(ASK_S)
    if not stop.is_set():
        raise ConfigError(f"the server did not become ready within {READY_S:.0f} s; see {log_folder()}")


def _is_running(progress: StartProgress) -> bool:
    from ray.serve.context import _get_global_client

    # Not ``serve.status()``: it pickles a class for every deployment, and took half of this process's time.
    overview = _get_global_client().get_serve_status(APP_NAME)
    progress.follow({one.name: one.status for one in overview.deployment_statuses}, _start_times)
    if overview.app_status.status == "DEPLOY_FAILED":
        failed = [one.message.strip() for one in overview.deployment_statuses if one.status == "DEPLOY_FAILED"]
        last_lines = [message.splitlines()[-1].strip() for message in failed if message]
        reason = " ".join([overview.app_status.message.strip(), *last_lines])
        raise ConfigError(f"the application did not start: {reason}; see {log_folder()}")
    return bool(overview.app_status.status == "RUNNING")


def _start_times(deployment: str) -> str:
    """Return the times of a target's start; "" for other deployments, or if it does not answer at once."""
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    if deployment.partition("-")[0] == TARGET:
        with contextlib.suppress(RayError, RayServeException, TimeoutError):
            return phases_of(handle_of(deployment).options(method_name="state").remote().result(timeout_s=STATE_S))
    return ""
