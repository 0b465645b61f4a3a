"""``spectra check``: what Serve would drop from a config file without a word is named, with its place."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import yaml

from app.cli import main

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing Serve warns
    import ray.serve.schema  # noqa: F401

FILE = Path(__file__).parents[4] / "docs" / "serve.yaml"
Captured = pytest.CaptureFixture[str]


def test_the_documented_file_is_right_also_as_a_ray_service(tmp_path: Path, capsys: Captured) -> None:
    service = tmp_path / "service.yaml"
    service.write_text(yaml.safe_dump({"kind": "RayService", "spec": {"serveConfigV2": FILE.read_text()}}))
    several = tmp_path / "several.yaml"
    several.write_text(f"kind: ConfigMap\n---\n{service.read_text()}---\nkind: Service\n")
    for file in (FILE, service, several):
        assert main(["check", str(file)]) == 0
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("place", "key", "says"),
    [
        ("", "proxy_locations", "proxy_locations is unknown to Serve, which would drop it; proxy_location is meant?"),
        ("applications.0", "argss", "applications[0].argss is unknown to Serve, which would drop it; args is meant?"),
        ("applications.0.args", "modle", "applications[0].args: modle is unknown; model is meant?"),
        (
            "applications.0.deployments.0",
            "num_replica",
            "applications[0].deployments[0].num_replica is unknown to Serve, which would drop it; num_replicas is",
        ),
        ("applications.0.deployments.0", "max_ongoing_requests", "max_ongoing_requests is {}: Input should be"),
    ],
)
def test_what_is_misspelt_is_named(tmp_path: Path, capsys: Captured, place: str, key: str, says: str) -> None:
    config = yaml.safe_load(FILE.read_text())
    inside = config
    for part in filter(None, place.split(".")):
        inside = inside[int(part) if part.isdigit() else part]
    inside[key] = {}
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(config))
    assert main(["check", str(file)]) == 1
    assert f"{file}: " in (said := capsys.readouterr().err)
    assert says in said


@pytest.mark.parametrize("import_path", ["app.builder:build_app", "app.builder.build_app"])
@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"model": "EMPTY"}, "model is 'EMPTY'; that directory holds no config.json"),
        ({"draft_model": "EMPTY"}, "draft_model is 'EMPTY'; that directory holds no config.json"),
        ({"draft_model": "EMPTY/none"}, "draft_model: model 'EMPTY/none' is neither a directory nor a hub id"),
        ({"heads": "EMPTY/heads.json"}, "heads is 'EMPTY/heads.json'; there is no such file"),
        ({"heads": "EMPTY"}, "heads is 'EMPTY'; there is no such file"),
    ],
)
def test_models_and_files_are_looked_for(
    tmp_path: Path, capsys: Captured, import_path: str, args: dict[str, str], says: str
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    config = yaml.safe_load(FILE.read_text())
    config["applications"][0]["import_path"] = import_path
    config["applications"][0]["args"] = {key: value.replace("EMPTY", str(empty)) for key, value in args.items()}
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(config))
    assert main(["check", str(file)]) == 1
    assert f"{file}: applications[0].args: {says.replace('EMPTY', str(empty))}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "is not YAML"),
        ("http_options: {}", "is no Serve config file: it has no applications"),
        ("kind: RayService", "is a RayService without the text spec.serveConfigV2"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, capsys: Captured, text: str, says: str) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(text)
    assert main(["check", str(file)]) == 2
    assert says in capsys.readouterr().err


def test_a_file_that_is_not_there_is_refused(capsys: Captured) -> None:
    assert main(["check", "/nowhere"]) == 2
    assert "/nowhere cannot be read" in capsys.readouterr().err


def test_paths_of_other_machines_are_not_looked_for_when_asked_not_to(tmp_path: Path, capsys: Captured) -> None:
    config = yaml.safe_load(FILE.read_text())
    config["applications"][0]["args"] |= {
        "model": "/models/elsewhere",
        "api_keys": "/etc/elsewhere",
        "heads": "/h.json",
    }
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(config))
    assert main(["check", str(file)]) == 1
    assert "/models/elsewhere" in capsys.readouterr().err
    assert main(["check", "--elsewhere", str(file)]) == 0
    config["applications"][0]["args"] |= {"model": "./here"}
    file.write_text(yaml.safe_dump(config))
    assert main(["check", "--elsewhere", str(file)]) == 1
    assert "./here" in capsys.readouterr().err


def test_bounds_that_the_router_would_not_take_are_named(tmp_path: Path, capsys: Captured) -> None:
    config = yaml.safe_load(FILE.read_text())
    application = config["applications"][0]
    application["args"] |= {"min_replicas": 1, "max_replicas": 3}
    file = tmp_path / "serve.yaml"
    for asked, status, says in (
        ({"min_replicas": 2, "max_replicas": 2}, 0, ""),
        ({"max_replicas": 4}, 1, "Router.user_config.max_replicas is 4; it must be an integer from 1 to 3"),
    ):
        application["deployments"] = [{"name": "Router", "user_config": asked}]
        file.write_text(yaml.safe_dump(config))
        assert main(["check", str(file)]) == status
        assert says in capsys.readouterr().err
