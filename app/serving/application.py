"""An application on Ray Serve: deploys it, waits until it takes requests, reports why it does not, and stops it.

It stops running requests first, then the streams that outlast the grace period, then the replicas.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import httpx

from app.serving.progress import StartProgress, phases_of
from app.serving.ray_session import controller_answers, log_folder, redirect_messages
from engine.errors import ConfigError

if TYPE_CHECKING:
    from ray.serve import Application

APP_NAME = "spectra"
ROUTER = "Router"  # name of the router's deployment, as in ``app.builder``
CLOSE_S = 2.0  # for the router to end the streams that outlast the grace period
UNDEPLOY_S = 20.0  # for Serve to stop all replicas, in addition to the grace period
FLUSH_S = 0.2  # for the last events to reach the clients
READY_S = 600.0  # a large model may load for minutes
ASK_S = 0.3  # between two questions, which take CPU time here and in Serve's controller
STATE_S = 2.0  # for a target that is up to report the times of its start
TARGET = "Target"  # prefix of the names of targets' deployments, as in ``app.builder``


def deploy(application: Application) -> None:
    """Start the deployments without waiting: a large model loads for minutes, and a signal must be heard meanwhile."""
    from ray.serve.api import RunTarget, run_many

    run_many(
        [RunTarget(application, APP_NAME)],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )


@cache
def handle_of(deployment: str) -> Any:
    """Return Serve's handle of a deployment, for calls of this process, in which no event loop runs."""
    from ray import serve

    handle = serve.get_deployment_handle(deployment, APP_NAME)  # cached, because only the first use sets it up
    handle._init(_run_router_in_separate_loop=True)
    return handle


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
