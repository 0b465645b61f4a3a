"""A speculator pool in a Ray actor, for methods whose drafting is too heavy for the router's own process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ray

from deployments.observability.logs import LogOptions, configure
from engine.protocol import Branch, Outcome
from engine.request import Request
from speculators.kernels import compile_kernels
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool


class SpeculatorActor:
    """Forwards to its pool; Ray keeps the order of one caller's calls.

    Args:
        options: settings of the methods.
        logs: how the process logs; None: as it does already.
    """

    def __init__(self, options: SpeculatorOptions, logs: LogOptions | None = None) -> None:
        if logs is not None:
            configure(logs, "Speculator")
        compile_kernels()  # here, because the first draft would time out over it
        self._pool = SpeculatorPool(options)

    def begin(self, request_id: int, request: Request, vocab_size: int) -> None:
        """Begin an admitted request, or begin it anew with its output so far as ``request.emitted``."""
        self._pool.end(request_id)
        self._pool.begin(request_id, request, vocab_size)

    def advance(self, outcomes: Sequence[tuple[int, Outcome]], budgets: Mapping[int, int]) -> dict[int, list[Branch]]:
        """Learn from one step's outcomes, and draft for the requests in ``budgets`` (request -> most nodes)."""
        return self._pool.advance(outcomes, budgets)

    def end(self, request_id: int) -> None:
        """Drop the state of a request."""
        self._pool.end(request_id)

    def n_live(self) -> int:
        """Requests that have begun and not ended."""
        return self._pool.n_live


def start_speculators(
    n: int, options: SpeculatorOptions, logs: LogOptions | None = None, cpus: float = 0.1, gpus: float = 0.0
) -> list[Any]:
    """Start ``n`` actors; Ray restarts those that die, with empty state."""
    remote = ray.remote(SpeculatorActor).options(num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=0)
    return [remote.remote(options, logs) for _ in range(n)]
