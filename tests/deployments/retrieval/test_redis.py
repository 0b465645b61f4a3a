"""The service on a real Redis that is killed, comes back empty, and holds a log that several servers share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.retrieval.metrics import RetrievalMetrics
from retrieval_store.service.compaction import log
from retrieval_store.service.learner import LiveOptions
from tests.support.redis_server import RedisServer
from tests.support.retrieval_service import SHARED, eventually, publish, running

BASE, ONE, TWO = [5, 6, 7, 8, 9], [5, 6, 70, 80, 90], [15, 16, 17, 18, 19]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


def test_a_redis_that_is_killed_and_comes_back_empty_takes_nothing_away(server: RedisServer, tmp_path: Path) -> None:
    with running(server.url, tmp_path / "cache") as node:
        first = publish(node.store(), [BASE], tmp_path)
        eventually(lambda: node.version() == first)
        server.kill()
        eventually(lambda: "away" in node.problem)
        before = node.staleness
        time.sleep(0.2)
        assert node.staleness > before
        assert node.says([5, 6]) == [7, 8, 9]
        server.start()
        eventually(lambda: "no snapshot" in node.problem)
        assert node.says([5, 6]) == [7, 8, 9]
        second = publish(node.store(), [ONE], tmp_path)
        eventually(lambda: node.version() == second)
        eventually(lambda: node.problem == "")
        assert node.says([5, 6]) == [70, 80, 90]
        assert node.service.status().refused == 0


def test_a_service_that_starts_without_its_redis_serves_what_it_had_and_finds_it_later(
    server: RedisServer, tmp_path: Path
) -> None:
    with running(server.url, tmp_path / "cache") as node:
        first = publish(node.store(), [BASE], tmp_path)
        eventually(lambda: node.version() == first)
    server.kill()
    with running(server.url, tmp_path / "cache") as node:
        eventually(lambda: node.says([5, 6]) == [7, 8, 9])
        eventually(lambda: "away" in node.problem)
        assert node.says([5, 6], "tenant") == [7, 8, 9]
        server.start()
        second = publish(node.store(), [ONE], tmp_path)
        eventually(lambda: node.version() == second)


def test_a_redis_that_takes_no_more_texts_shows_in_the_status_until_it_does(
    server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        server.client() as client,
        running(server.url, tmp_path / "cache", [SHARED], LiveOptions(tokens=1000, interval=0.05)) as node,
    ):
        metrics = RetrievalMetrics("m", node.reader, (SHARED,), None)
        eventually(lambda: not node.source.learn(SHARED, [ONE]))
        eventually(lambda: node.says([5, 6]) == [70, 80, 90])
        assert metrics.detail()["retrieval_learning_problem"] == ""
        client.config_set("maxmemory", 1)
        node.source.learn(SHARED, [TWO])
        eventually(lambda: "maxmemory" in str(metrics.detail()["retrieval_learning_problem"]))
        assert node.problem == ""
        time.sleep(1.2)  # it is tried again
        assert len([record for record in caplog.records if "maxmemory" in record.message]) == 1
        client.config_set("maxmemory", 0)
        eventually(lambda: node.says([15, 16]) == [17, 18, 19])
        eventually(lambda: metrics.detail()["retrieval_learning_problem"] == "")
        assert node.service.status().live_dropped == 0


def test_live_texts_go_through_redis_to_all_servers_and_wait_while_it_is_away(
    server: RedisServer, tmp_path: Path
) -> None:
    options = LiveOptions(tokens=1000, interval=0.05, compact_tokens=14)
    with (
        running(server.url, tmp_path / "cache", [SHARED], options) as one,
        running(server.url, tmp_path / "elsewhere", [SHARED], options) as other,
    ):
        first = publish(one.store(), [BASE], tmp_path)
        eventually(lambda: one.version() == other.version() == first)
        eventually(lambda: not one.source.learn(SHARED, [ONE]))
        eventually(lambda: other.says([5, 6]) == [70, 80, 90])
        server.kill()
        other.source.learn(SHARED, [TWO])
        eventually(lambda: "away" in other.problem)
        time.sleep(0.2)
        assert other.says([5, 6]) == [70, 80, 90]
        server.start()
        eventually(lambda: one.says([15, 16]) == [17, 18, 19])
        assert one.service.status().live_dropped == other.service.status().live_dropped == 0
        second = publish(one.store(), [BASE], tmp_path)
        assert second == first  # the same text is the same version
        one.source.learn(SHARED, [[25, 26, 27, 28], [35, 36, 37, 38], [45, 46, 47, 48]])
        eventually(lambda: one.version() == other.version() != first)
        eventually(lambda: other.says([45, 46]) == [47, 48])
        assert list(log(one.store(), one.store().manifest(one.version()).about.folded)) == []
        # a version is current before its maker counts it
        eventually(lambda: one.service.status().compactions + other.service.status().compactions == 1)
