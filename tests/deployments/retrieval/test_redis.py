"""Several services share a real Redis that is killed and comes back empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrieval_store.service.compaction import log
from retrieval_store.service.learner import LiveOptions
from tests.support.redis_server import RedisServer
from tests.support.retrieval_service import SHARED, running
from tests.support.waiting import wait_until

BASE, ONE, TWO = [5, 6, 7, 8, 9], [5, 6, 70, 80, 90], [15, 16, 17, 18, 19]


@pytest.mark.cluster
def test_live_texts_reach_all_servers_through_redis_and_wait_while_it_is_away(
    tmp_path: Path,
) -> None:
    options = LiveOptions(tokens=1000, interval=0.05, compact_tokens=14)
    with (
        RedisServer() as server,
        running(server.url, tmp_path / "cache", [SHARED], options) as one,
        running(server.url, tmp_path / "elsewhere", [SHARED], options) as other,
    ):
        first = one.publish([BASE], tmp_path)
        wait_until(lambda: other.version() == first)
        wait_until(lambda: not one.source.learn(SHARED, [ONE]))
        other.wait_for_drafts([5, 6], [70, 80, 90])
        server.kill()
        other.source.learn(SHARED, [TWO])
        wait_until(lambda: "away" in other.problem)
        assert other.drafts([5, 6]) == [70, 80, 90]
        server.start()
        one.wait_for_drafts([15, 16], [17, 18, 19])
        assert one.service.status().live_dropped == other.service.status().live_dropped == 0
        assert one.publish([BASE], tmp_path) == first  # the same text is the same version
        one.source.learn(SHARED, [[25, 26, 27, 28], [35, 36, 37, 38], [45, 46, 47, 48]])
        wait_until(lambda: one.version() == other.version() != first)
        other.wait_for_drafts([45, 46], [47, 48])
        assert list(log(one.store(), one.store().manifest(one.version()).about.folded)) == []
        # A version is current before its maker counts it.
        wait_until(lambda: one.service.status().compactions + other.service.status().compactions == 1)
