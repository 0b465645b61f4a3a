"""What a starting server says: every deployment once as it starts and once as it is up, and nothing on stdout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.config.serve import ServeConfig
from app.inputs import devices
from app.serving.preflight import check_gpus, check_store
from app.serving.progress import Progress, phases_of
from app.serving.server import Server
from benchmarks.support.server_process import free_port
from engine.errors import ConfigError


def test_each_deployment_is_told_as_it_starts_and_as_it_is_up(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    for router, target in (("UPDATING", "UPDATING"), ("UPDATING", "HEALTHY"), ("HEALTHY", "HEALTHY")):
        progress.follow({"Router": router, "Target-2": target})
    said = capsys.readouterr()
    lines = [line.split("s  ", 1)[1] for line in said.err.splitlines()]
    assert said.out == ""
    assert [line.split(":")[0] for line in lines] == [
        "Router starts",
        "Target-2 starts",
        "Target-2 is up",
        "Router is up",
    ]


def test_what_is_waited_for_is_told_after_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    impatient, patient = Progress(patience=-1.0), Progress()
    for progress in (impatient, patient):
        progress.follow({"Router": "UPDATING", "Target": "HEALTHY"})
        progress.follow({"Router": "HEALTHY", "Target": "HEALTHY"})
    said = capsys.readouterr().err
    assert said.count("waiting for Router\n") == 1
    assert "Target" not in "".join(line for line in said.splitlines() if "waiting" in line)


def test_what_the_start_of_a_target_took_is_told_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    stages = [
        {"load_seconds": {"import": 4.0, "resolve": 2.0, "read": 9.0, "build": 0.5}, "read_bytes": 3 << 30},
        {"load_seconds": {"import": 5.0, "check": 0.02, "read": 7.0, "build": 0.6}, "read_bytes": 2 << 30},
    ]
    state = {"load_seconds": {"plan": 1.0, "connect": 0.2, "ready": 16.0}, "stages": stages}
    Progress().follow({"Target": "HEALTHY"}, lambda name: phases_of(state))
    told = "import 5.0 s, plan 1.0 s, resolve 2.0 s, read 9.0 s, build 0.6 s, connect 0.2 s, 5.00 GiB of weights"
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"Target is up: {told}")
    assert phases_of({"load_seconds": {}, "stages": [{"load_seconds": {}, "read_bytes": 0}]}) == ""


@pytest.fixture
def server() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def make(address: str | None = None, **fields: object) -> Server:
        made.append(Server(ServeConfig.model_validate(fields), "127.0.0.1", free_port(), address))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def test_a_store_that_does_not_answer_is_told_and_one_that_does_is_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    say = Progress().say
    check_store(ServeConfig(retrieval="redis://user:secret@127.0.0.1:1"), say)
    said = capsys.readouterr()
    assert "--retrieval: the store does not answer, serving without it until it does: redis://" in said.err
    assert "secret" not in said.err + said.out
    check_store(ServeConfig(retrieval="none"), say)
    check_store(ServeConfig(retrieval=f"file://{tmp_path}"), say)
    assert capsys.readouterr() == ("", "")


def test_a_server_on_gpus_is_refused_where_there_is_none(
    server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(devices, "DEVICES", tmp_path)
    with pytest.raises(ConfigError, match="--device is cuda, but no CUDA device was found on this machine"):
        server(device="cuda", stage_gpus=1).start()
    (tmp_path / "nvidia0").touch()
    assert devices.has_cuda_device()


def test_a_lack_of_gpus_fails_a_ray_of_its_own_and_is_told_of_a_cluster_that_may_grow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("app.serving.preflight.n_gpus", lambda: 3.0)
    say = Progress().say
    lack = "--stage-gpus is 0.5: the stages need 4 GPUs, but Ray has 3"
    wanted = {"device": "cuda", "stages": 4, "replicas": 2, "stage_gpus": 0.5}
    with pytest.raises(ConfigError, match=lack):
        check_gpus(ServeConfig.model_validate(wanted), say, is_local=True)
    check_gpus(ServeConfig.model_validate(wanted), say, is_local=False)
    assert f"{lack}; the application starts once nodes with more have joined" in capsys.readouterr().err
    check_gpus(ServeConfig.model_validate(wanted | {"replicas": 1}), say, is_local=True)
    check_gpus(ServeConfig(), say, is_local=True)
    assert capsys.readouterr() == ("", "")
    with pytest.raises(ConfigError, match=r"the stages and their standbys need 3\.5 GPUs, but Ray has 3"):
        check_gpus(ServeConfig.model_validate(wanted | {"replicas": 1, "standby_stages": 3}), say, is_local=True)


def test_a_program_that_reads_the_log_gets_the_progress_as_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        Progress(is_logged=True).say("starting Ray")
    [record] = caplog.records
    assert record.message == "starting Ray"
    assert record.__dict__["seconds"] >= 0
