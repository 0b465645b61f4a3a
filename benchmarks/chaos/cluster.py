"""The server's own Ray cluster, joined to ask which process is which stage; not what is done to them."""

from __future__ import annotations

import asyncio
import os
from typing import Any

APP, TARGET = "spectra", "Target"

# Before anything imports Ray: as the server's own Ray has them, or this process would look for it by another address.
os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


class Cluster:
    """Joined from the first question on; the server must run."""

    def __init__(self) -> None:
        self._handle: Any = None

    async def stage_pids(self) -> list[int]:
        """Process ids of the stages, first to last."""
        pids: list[int] = await asyncio.to_thread(self._ask)
        return pids

    def _ask(self) -> list[int]:
        from ray import serve

        if self._handle is None:
            self._join()
            self._handle = serve.get_deployment_handle(TARGET, APP)
        pids: list[int] = self._handle.stage_pids.remote().result(timeout_s=60)
        return pids

    def _join(self) -> None:
        import ray

        ray.init("auto", log_to_driver=False, configure_logging=False)

    def leave(self) -> None:
        """Harmless when it was never joined."""
        if self._handle is not None:
            import ray

            ray.shutdown()
