"""A starting server reports every deployment as it starts and when it is up, on stderr, and checks stores and GPUs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.config.serve import ServeConfig
from app.inputs import devices
from app.serving import progress as progress_module
from app.serving import ray_session
from app.serving.preflight import check_gpus, check_store
from app.serving.progress import StartProgress, phases_of
from app.serving.ray_session import RAY_GAVE_UP
from app.serving.server import Server
from benchmarks.support.server_process import free_port
from engine.errors import ConfigError


def test_each_deployment_is_reported_as_it_starts_and_when_it_is_up(capsys: pytest.CaptureFixture[str]) -> None:
    progress = StartProgress()
    for router, target in (("UPDATING", "UPDATING"), ("UPDATING", "HEALTHY"), ("HEALTHY", "HEALTHY")):
        progress.follow({"Router": router, "Target-2": target})
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = [line.split("s  ", 1)[1].split(":")[0] for line in printed.err.splitlines()]
    assert lines == ["Router starts", "Target-2 starts", "Target-2 is up", "Router is up"]


def test_a_slow_deployment_is_named_and_progress_is_logged_on_request(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for patience in (-1.0, float("inf")):
        monkeypatch.setattr(progress_module, "PATIENCE_S", patience)
        progress = StartProgress()
        progress.follow({"Router": "UPDATING", "Target": "HEALTHY"})
        progress.follow({"Router": "HEALTHY", "Target": "HEALTHY"})
    printed = capsys.readouterr().err
    assert printed.count("waiting for Router\n") == 1
    assert "waiting for Target" not in printed
    with caplog.at_level("INFO"):
        StartProgress(is_logged=True).say("starting Ray")
    assert [record.message for record in caplog.records] == ["starting Ray"]


def test_a_target_reports_the_times_of_its_start(capsys: pytest.CaptureFixture[str]) -> None:
    stages = [
        {"load_seconds": {"import": 4.0, "resolve": 2.0, "read": 9.0, "build": 0.5}, "read_bytes": 3 << 30},
        {"load_seconds": {"import": 5.0, "check": 0.02, "read": 7.0, "build": 0.6}, "read_bytes": 2 << 30},
    ]
    state = {"load_seconds": {"plan": 1.0, "connect": 0.2, "ready": 16.0}, "stages": stages}
    StartProgress().follow({"Target": "HEALTHY"}, lambda name: phases_of(state))
    phases = "import 5.0 s, plan 1.0 s, resolve 2.0 s, read 9.0 s, build 0.6 s, connect 0.2 s, 5.00 GiB of weights"
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"Target is up: {phases}")
    assert phases_of({"load_seconds": {}, "stages": [{"load_seconds": {}, "read_bytes": 0}]}) == ""


def test_an_empty_or_silent_store_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    say = StartProgress().say
    check_store(ServeConfig(retrieval="redis://user:secret@127.0.0.1:1"), say)
    printed = capsys.readouterr()
    assert "--retrieval: the store does not answer, serving without it until it does: redis://" in printed.err
    assert "secret" not in printed.err + printed.out
    check_store(ServeConfig(retrieval="none"), say)
    assert capsys.readouterr() == ("", "")
    check_store(ServeConfig(retrieval=f"file://{tmp_path}", retrieval_namespace="a"), say)
    assert f"--retrieval: namespace a of file://{tmp_path} has no snapshot yet; " in capsys.readouterr().err


def test_a_server_on_gpus_needs_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "DEVICES", tmp_path)
    server = Server(ServeConfig(device="cuda", stage_gpus=1), "127.0.0.1", free_port())
    with pytest.raises(ConfigError, match="--device is cuda, but no CUDA device was found on this machine"):
        server.start()
    server.stop()
    (tmp_path / "nvidia0").touch()
    assert devices.has_cuda_device()


def test_too_few_gpus_fail_a_local_ray_and_are_reported_on_a_cluster_that_may_grow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("app.serving.preflight.n_gpus", lambda: 3.0)
    say = StartProgress().say
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
    ranks = {"device": "cuda", "stages": 2, "tensor_parallel": 2, "stage_gpus": 1}
    with pytest.raises(ConfigError, match="the stages need 4 GPUs, but Ray has 3"):
        check_gpus(ServeConfig.model_validate(ranks), say, is_local=True)


def test_ray_is_started_again_where_a_busy_machine_did_not_start_it_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Exception | None] = [Exception(f"{RAY_GAVE_UP}. This could happen"), None, ValueError("wrong")]
    ended: list[int] = []

    def init(**_: object) -> None:
        if error := answers.pop(0):
            raise error

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr(ray_session, "end_ray", lambda **_: ended.append(len(answers)))
    with ThreadPoolExecutor(1) as thread:  # whose signals it blocks
        thread.submit(ray_session.init_ray, {}).result()
        assert ended == [2]
        with pytest.raises(ValueError, match="wrong"):
            thread.submit(ray_session.init_ray, {}).result()
