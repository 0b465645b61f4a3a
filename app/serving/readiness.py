"""When an application that was deployed takes requests, or why it never will."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import httpx

from app.serving.progress import StartProgress, phases_of
from app.serving.ray_session import log_folder
from app.serving.shutdown import APP_NAME, handle_of
from engine.errors import ConfigError

if TYPE_CHECKING:
    from ray.serve._private.common import StatusOverview

READY_S = 600.0  # a large model may load for minutes
TOLD_S = 2.0  # for a target that is up to say what its start took
TARGET = "Target"  # what the names of targets' deployments begin with, as in ``app.builder``


def wait_until_ready(
    base: str, client: Callable[[float], httpx.Client], progress: StartProgress, stop: threading.Event
) -> None:
    """Return once a request would succeed, or ``stop`` is set.

    Args:
        base: URL of the server.
        client: makes one for requests to it, given their timeout in seconds.
        progress: told of every deployment.
        stop: set by a signal.

    Raises:
        ConfigError: the application does not come up; the message says why, as far as Serve does.
    """
    deadline = time.monotonic() + READY_S
    with client(30.0) as http:
        while time.monotonic() < deadline and not stop.is_set():
            # Asking any earlier would hold us up: the proxy keeps a request until a replica can take it.
            if _is_running(progress):
                with contextlib.suppress(httpx.HTTPError):
                    if http.get(f"{base}/ready").status_code == httpx.codes.OK:
                        return
            stop.wait(0.1)
    if not stop.is_set():
        raise ConfigError(f"the server did not become ready within {READY_S:.0f} s; see {log_folder()}")


def _is_running(progress: StartProgress) -> bool:
    from ray.serve.context import _get_global_client

    # Not ``serve.status()``: that pickles a class for every deployment, and took half of this process's time.
    overview = _get_global_client().get_serve_status(APP_NAME)
    progress.follow({one.name: one.status for one in overview.deployment_statuses}, _took)
    if overview.app_status.status == "DEPLOY_FAILED":
        raise ConfigError(f"the application did not start: {_why(overview)}; see {log_folder()}")
    return bool(overview.app_status.status == "RUNNING")


def _took(name: str) -> str:
    """What the start of a deployment took, where it is a target's; "" if it does not say so at once."""
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    if name.partition("-")[0] == TARGET:
        with contextlib.suppress(RayError, RayServeException, TimeoutError):
            return phases_of(handle_of(name).options(method_name="state").remote().result(timeout_s=TOLD_S))
    return ""


def _why(overview: StatusOverview) -> str:
    """What Serve says of an application that failed, and the last line of what the deployments say that failed it."""
    failed = [one.message for one in overview.deployment_statuses if one.status == "DEPLOY_FAILED"]
    last = [message.strip().splitlines()[-1].strip() for message in failed if message.strip()]
    return " ".join([overview.app_status.message.strip(), *last])
