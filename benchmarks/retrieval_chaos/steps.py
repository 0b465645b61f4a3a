"""The steps of a round: what is done, in which order, and what must be seen then; not how it is seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.retrieval_chaos.moves import Done, publish, publish_damaged, roll_back
from benchmarks.retrieval_chaos.processes import RedisProcess
from benchmarks.retrieval_chaos.snapshots import Snapshots

NOTHING = "nothing"


@dataclass(frozen=True)
class Step:
    """What is done at the beginning of a phase, and what must be seen at its end."""

    name: str
    act: Callable[[], Done] | None = None  # in this process, if it needs no work
    work: tuple[Any, ...] = ()  # function and arguments for the other process
    version: str = ""  # served at the end; "": the same as before
    problem: str = ""  # word that retrieval_problem must have; "": it is empty
    refused: int = 0  # snapshots refused in this phase


def steps_of_a_round(redis: RedisProcess, snapshots: Snapshots) -> list[Step]:
    """All steps, in their order."""
    url, folder, key, version = redis.url, snapshots.folder, snapshots.tokenizer_hash, snapshots.versions

    def kill() -> Done:
        redis.kill()
        return Done("", time.monotonic())

    def start() -> Done:
        redis.start()
        return Done("", time.monotonic())

    back = (roll_back, url, key)
    damaged = (publish_damaged, url, folder / "damaged", key)
    return [
        Step(NOTHING),
        Step("publish A", work=(publish, url, folder / "A", key), version=version["A"]),
        Step("publish B", work=(publish, url, folder / "B", key), version=version["B"]),
        Step("roll back to A", work=back, version=version["A"]),
        Step(NOTHING),
        Step("kill -9 Redis", act=kill, problem="away"),
        Step("restart it empty", act=start, problem="no snapshot"),
        Step("publish B again", work=(publish, url, folder / "B", key), version=version["B"]),
        Step("damaged", work=damaged, problem=version["damaged"], refused=1),
        Step("foreign", work=(publish, url, folder / "foreign", ""), problem=version["foreign"], refused=1),
        Step("roll back to B", work=back, version=version["B"]),
        Step(NOTHING),
    ]
