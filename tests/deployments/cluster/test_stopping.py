"""A server that is stopped while streams run for longer than its grace period."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.server_process import FLAGS, Stream, check_stopped, running

pytestmark = pytest.mark.cluster


def test_streams_that_outlast_the_grace_period_end_with_an_error_event(tiny_checkpoint: Path) -> None:
    with running(tiny_checkpoint, (*FLAGS[:-1], "0.2")) as server:
        streams = [Stream(server, max_tokens=900, ignore_eos=True, seed=seed) for seed in (4, 5)]
        for stream in streams:
            stream.until(5)
        processes = server.processes()
        server.process.send_signal(signal.SIGINT)
        for stream in streams:
            stream.join()
            assert len(stream.token_ids) < 900
            assert [error["code"] for error in stream.errors] == ["target_lost"]
            assert "shutting down" in stream.errors[0]["message"]
            assert stream.ended_with.startswith('data: {"error"')
        check_stopped(server, processes)
