"""Starts and ends a server's Ray, whose processes outlive the signals that stop the server, but not the server."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import psutil

logger = logging.getLogger(__name__)

RAY_GAVE_UP, N_STARTS = "The current node timed out during startup", 4
ANSWER_S = 5.0  # Serve's controller answers within milliseconds if it runs; killed processes end as fast


def init_ray(options: dict[str, Any]) -> None:
    """Start or join Ray as ``ray.init(**options)`` does, with SIGTERM blocked in all processes that it starts.

    The calling thread must live as long as Ray: Ray's processes die with their parent thread.

    A signal to the server often reaches Ray's processes too (systemd signals the control group, ``timeout`` and a
    terminal the process group). They must live on: running streams have a grace period, and Serve shuts itself down.
    Ray blocks SIGINT in the same way.

    If a busy machine does not start Ray within the 30 s that Ray allows, this starts it again.

    By default, Ray's workers would import from the current folder first, where a module may have the name of a
    library's. They do not if the job has a working directory.
    """
    import ray
    from ray.job_config import JobConfig

    job = JobConfig()
    job._runtime_env_has_working_dir = lambda: True
    if options.get("address") == "local" and options.get("include_dashboard") is False:
        _leave_out_services()
    logging.getLogger("ray").setLevel(logging.ERROR)  # it warns that it could not take the signals
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    others = psutil.Process().children(recursive=True)
    for n_left in reversed(range(N_STARTS)):
        try:
            ray.init(**options, job_config=job)
            return
        except Exception as error:  # Ray has no class for it
            if RAY_GAVE_UP not in str(error) or not n_left:
                raise
            logger.warning("Ray did not start within 30 s on this busy machine; starting it again")
            end_ray(spared=others)


def _leave_out_services() -> None:
    """Start no API server, autoscaler and log monitor with the Ray of this process, which nothing here uses.

    They take 5 s of CPU time, and ``ray.init`` waits for the first, which ``include_dashboard=False`` does not prevent.
    """
    from ray._private.node import Node

    Node.start_api_server = Node.start_monitor = Node.start_log_monitor = lambda *_, **__: None


def n_gpus() -> float:
    """Return the GPUs of all nodes of Ray, reserved ones included."""
    import ray

    return float(ray.cluster_resources().get("GPU", 0.0))


def ray_address() -> str:
    """Return the ``HOST:PORT`` at which drivers join this Ray."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def log_folder() -> str:
    """Return the folder of the logs of Ray's processes; those of Serve's replicas are in ``serve`` below it."""
    from ray._private import worker

    return str(worker._global_node.get_logs_dir_path())


def redirect_messages() -> None:
    """Send Ray's messages to ``driver.log`` in its log folder from now on, instead of the terminal.

    A shutdown calls this first: it kills actors, and Ray reports each as failed and about to be restarted.
    """
    from ray._private import worker

    log = Path(log_folder()) / "driver.log"

    def write(data: dict[str, Any], **_: Any) -> None:
        with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in data["lines"])

    worker.print_to_stdstream = write


def end_ray(spared: Collection[psutil.Process] = ()) -> None:
    """Shut down the Ray that this process started, and wait until all child processes but ``spared`` have ended.

    They are killed at once, because nothing runs in them any more. Ray would wait a second for each to obey SIGTERM,
    which they block, and its agents would look for their killed raylet for a while.
    """
    import ray
    from ray._private.services import ConsolePopen

    family = set(psutil.Process().children(recursive=True)).difference(spared)
    ConsolePopen.terminate = ConsolePopen.kill
    ray.shutdown()
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs([*family], timeout=ANSWER_S)


def controller_answers() -> bool:
    """Whether Serve's controller still runs, which shuts Serve down; without one Serve would wait for it for 30 s."""
    from ray import serve

    def ask() -> None:
        with contextlib.suppress(Exception):  # an error is an answer too
            serve.status()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ANSWER_S)
    return not asking.is_alive()
