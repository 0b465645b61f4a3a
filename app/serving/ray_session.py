"""Ray as a server starts and ends it: its processes outlive the signals that stop the server, but not the server."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

RAY_GAVE_UP, N_STARTS = "The current node timed out during startup", 4
ANSWER_S = 5.0  # Serve's controller answers within milliseconds if it is there; killed processes go as fast


def init_ray(options: dict[str, Any]) -> None:
    """Start or join Ray as ``ray.init(**options)`` does; all that it starts inherits that SIGTERM is blocked.
    To be called in a thread that lives as long as Ray: its processes die with their parent thread.

    What stops the server often reaches them too (systemd signals the control group, ``timeout`` and a terminal the
    process group). They have to live on: running streams have their grace, and Serve takes itself down. Ray
    itself blocks SIGINT likewise.

    A busy machine may not start Ray within the 30 s that Ray allows; then it is started again.

    Ray would have its workers import from the current folder first, where any module may have the name of a library's.
    It does not if the job brings a working directory.
    """
    import ray
    from ray.job_config import JobConfig

    job = JobConfig()
    job._runtime_env_has_working_dir = lambda: True
    if options.get("address") == "local":
        _leave_out_services()
    logging.getLogger("ray").setLevel(logging.ERROR)  # it warns that it could not take the signals
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    for n_left in reversed(range(N_STARTS)):
        try:
            ray.init(**options, job_config=job)
            return
        except Exception as error:  # Ray has no class for it
            if RAY_GAVE_UP not in str(error) or not n_left:
                raise
            logger.warning("Ray did not start within 30 s on this busy machine; starting it again")
            end_ray()


def _leave_out_services() -> None:
    """Start no API server, autoscaler and log monitor with the Ray of this process, which nothing here uses.

    They take 5 s of CPU time, and ``ray.init`` waits for the first, which ``include_dashboard=False`` does not prevent.
    """
    from ray._private.node import Node

    Node.start_api_server = Node.start_monitor = Node.start_log_monitor = lambda *_, **__: None


def n_gpus() -> float:
    """GPUs of all nodes that Ray has now, reserved ones included."""
    import ray

    return float(ray.cluster_resources().get("GPU", 0.0))


def ray_address() -> str:
    """``HOST:PORT`` by which drivers join this Ray."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def log_folder() -> str:
    """Where this Ray's processes write their logs, those of Serve's replicas in ``serve`` below it."""
    from ray._private import worker

    return str(worker._global_node.get_logs_dir_path())


def redirect_messages() -> None:
    """From now on Ray's messages go to ``driver.log`` among its logs instead of the terminal.

    To be called when a shutdown begins: it kills actors, and Ray reports each as failed and about to be tried again.
    """
    from ray._private import worker

    log = Path(log_folder()) / "driver.log"

    def write(data: dict[str, Any], **_: Any) -> None:
        with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in data["lines"])

    worker.print_to_stdstream = write


def end_ray() -> None:
    """Shut down the Ray that this process started, and wait until its processes have gone.

    Ray would give each a second to heed the SIGTERM that it cannot hear, and its agents look for their cluster for a
    while when their raylet was killed. Nothing runs in them at this point: all are killed at once.
    """
    import psutil
    import ray
    from ray._private.services import ConsolePopen

    family = psutil.Process().children(recursive=True)
    ConsolePopen.terminate = ConsolePopen.kill
    ray.shutdown()
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, timeout=ANSWER_S)


def controller_answers() -> bool:
    """Whether there is still a controller that could take Serve down; without one Serve would wait 30 s for it."""
    from ray import serve

    def ask() -> None:
        with contextlib.suppress(Exception):  # an answer as well
            serve.status()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ANSWER_S)
    return not asking.is_alive()
