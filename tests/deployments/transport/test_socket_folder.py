"""The folders of processes' sockets: one that a killed process left is removed by another process of its kind."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from deployments.transport.socket_folder import SocketFolder


def left_by_a_killed_process() -> None:
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            SocketFolder()
        os._exit(0)
    os.waitpid(child, 0)


def test_the_socket_folders_of_killed_processes_are_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    living = SocketFolder()
    left_by_a_killed_process()
    assert len(list(tmp_path.iterdir())) == 2
    newest = SocketFolder()
    assert set(tmp_path.iterdir()) == {living.path, newest.path}
    living.remove()
    newest.remove()
    newest.remove()
    assert not list(tmp_path.iterdir())


def test_a_process_that_leaves_clears_away_what_was_killed_after_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    living, leaving = SocketFolder(), SocketFolder()
    left_by_a_killed_process()
    assert len(list(tmp_path.iterdir())) == 3
    leaving.remove()
    assert list(tmp_path.iterdir()) == [living.path]
    living.remove()
