"""``spectra corpus`` in this process, an empty store of each kind, and snapshots to publish."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from app.cli import main
from retrieval_store.snapshots.snapshot import Description
from retrieval_store.snapshots.snapshot_writer import write_snapshot
from retrieval_store.stores.redis_url import PASSWORD as PASSWORD_VARIABLE
from tests.support.corpus_commands import PASSWORD, TEXTS, Run
from tests.support.redis_server import RedisServer


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer("--requirepass", PASSWORD) as server:
        yield server


@pytest.fixture(params=["folder", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where an empty store is, as ``--store`` takes it."""
    if request.param == "folder":
        yield str(tmp_path / "store")
        return
    server: RedisServer = request.getfixturevalue("redis")
    with server.client(password=PASSWORD) as client:
        client.flushall()
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    yield server.url


@pytest.fixture
def corpus(capsys: pytest.CaptureFixture[str]) -> Run:
    """``corpus("list", ...)``: status, stdout, stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["corpus", *map(str, words)])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


@pytest.fixture
def refused(corpus: Run) -> Callable[..., str]:
    """The one line that a command refuses with."""

    def run(*words: object) -> str:
        status, out, err = corpus(*words)
        assert (status, out) == (2, "")
        [line] = err.splitlines()
        assert line.startswith("spectra: ")
        return line

    return run


@pytest.fixture
def snapshots(tmp_path: Path) -> list[Path]:
    """Folders of three snapshots."""
    made = []
    for i in range(3):
        about = Description(tokenizer_hash="t" * 32, vocab_size=4096)
        texts = [np.array(text, np.int32) + i for text in TEXTS]
        write_snapshot(texts, tmp_path / f"snapshot {i}", about)
        made.append(tmp_path / f"snapshot {i}")
    return made
