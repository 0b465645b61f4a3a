"""A server of two stages, two ingresses, a drafter and a Redis for all files of this folder; the last one stops it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.drafter.checkpoint.write import write_drafter
from engine.model.loader import load_spec
from tests.support.redis_server import RedisServer
from tests.support.served_drafters import drafter_spec, random_checkpoint
from tests.support.server_process import SpectraServer, running

MAX_SEQUENCES, MAX_WAITING = 8, 8


@pytest.fixture(scope="package")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpectraServer]:
    drafter, spec = tmp_path_factory.mktemp("drafter"), load_spec(tiny_checkpoint)
    write_drafter(drafter, random_checkpoint(drafter_spec("p-eagle", spec)), spec)
    shape = ("--stages", "2", "--ingress-replicas", "2", "--drafter", str(drafter))
    room = ("--max-sequences", str(MAX_SEQUENCES), "--max-waiting", str(MAX_WAITING), "--kv-gib", "0.05")
    logs = ("--log-format", "json", "--log-level", "debug")
    with RedisServer() as redis:
        flags = ("--name", "tiny", "--grace", "120", "--answer-store", redis.url, *shape, *room, *logs)
        with running(tiny_checkpoint, flags) as started:
            yield started
