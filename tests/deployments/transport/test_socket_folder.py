"""The folders of processes' sockets: one that a killed process left is removed by the next process of its kind."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from deployments.transport.socket_folder import SocketFolder


def test_the_socket_folders_of_killed_processes_are_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    living = SocketFolder()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            SocketFolder()
        os._exit(0)
    os.waitpid(child, 0)
    assert len(list(tmp_path.iterdir())) == 2
    newest = SocketFolder()
    assert set(tmp_path.iterdir()) == {living.path, newest.path}
    living.remove()
    newest.remove()
    newest.remove()
    assert not list(tmp_path.iterdir())
