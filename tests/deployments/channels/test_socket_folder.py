"""The socket folder of a killed process is removed by the next process that makes or removes one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deployments.channels.socket_folder import SocketFolder


def made_by_a_killed_process() -> None:
    folder = SocketFolder()
    assert folder._lock is not None
    os.close(folder._lock)  # the kernel does the same
    folder._lock = None


def test_the_socket_folders_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    living = SocketFolder()
    made_by_a_killed_process()
    assert len(list(tmp_path.iterdir())) == 2
    newest = SocketFolder()
    assert set(tmp_path.iterdir()) == {living.path, newest.path}
    made_by_a_killed_process()
    newest.remove()
    newest.remove()
    assert list(tmp_path.iterdir()) == [living.path]
    living.remove()
    assert not list(tmp_path.iterdir())
