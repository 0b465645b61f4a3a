"""``spectra check`` names, with its place, what Serve would silently drop from a config file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.support.spectra_command import run_cli

FILE = Path(__file__).parents[4] / "docs" / "serve.yaml"
ARGS = "applications.0.args"
DEPLOYMENT = "applications.0.deployments.0"
Check = Callable[..., tuple[int, str]]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Status and errors for the documented file with the values at some places changed."""

    def run(changes: dict[str, Any], *flags: str) -> tuple[int, str]:
        config = yaml.safe_load(FILE.read_text())
        for place, value in changes.items():
            *path, key = place.split(".")
            inside = config
            for part in path:
                inside = inside[int(part) if part.isdigit() else part]
            inside[key] = value
        file = tmp_path / "serve.yaml"
        file.write_text(yaml.safe_dump(config))
        ran = run_cli("check", *flags, file)
        return ran.status, ran.err

    return run


def test_the_documented_file_passes_also_inside_a_ray_service(tmp_path: Path) -> None:
    several = tmp_path / "several.yaml"
    service = yaml.safe_dump({"kind": "RayService", "spec": {"serveConfigV2": FILE.read_text()}})
    several.write_text(f"kind: ConfigMap\n---\n{service}---\nkind: Service\n")
    for file in (FILE, several):
        ran = run_cli("check", file)
        assert (ran.status, ran.err) == (0, "")


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("proxy_locations", {}, "unknown to Serve, which would drop it; did you mean proxy_location?"),
        ("applications.0.argss", {}, "[0].argss is unknown to Serve, which would drop it; did you mean args?"),
        (f"{ARGS}.modle", {}, "applications[0].args: modle is unknown; did you mean model?"),
        (f"{DEPLOYMENT}.num_replica", {}, "applications[0].deployments[0].num_replica is unknown to Serve"),
        (f"{DEPLOYMENT}.max_ongoing_requests", {}, "max_ongoing_requests is {}: "),
        (ARGS, {"model": "EMPTY"}, "args: model is 'EMPTY'; that directory holds no config.json"),
        (ARGS, {"draft_model": "EMPTY/a"}, "args: draft_model: model 'EMPTY/a' is neither a directory nor"),
        (ARGS, {"heads": "EMPTY"}, "args: heads is 'EMPTY'; there is no such file"),
    ],
)
def test_a_misspelt_key_or_a_missing_file_is_named(
    place: str, value: dict[str, str], says: str, check: Check, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    status, err = check({place: {key: text.replace("EMPTY", str(empty)) for key, text in value.items()}})
    assert status == 1
    assert f"{tmp_path / 'serve.yaml'}: " in err
    assert says.replace("EMPTY", str(empty)) in err


def test_absolute_paths_of_other_machines_are_accepted_with_elsewhere(check: Check) -> None:
    paths = {f"{ARGS}.model": "/models/elsewhere", f"{ARGS}.api_keys": "/etc/elsewhere", f"{ARGS}.heads": "/h.json"}
    status, err = check(paths)
    assert (status, "/models/elsewhere" in err) == (1, True)
    assert check(paths, "--elsewhere") == (0, "")
    status, err = check(paths | {f"{ARGS}.model": "./here"}, "--elsewhere")
    assert (status, "./here" in err) == (1, True)


def test_replica_bounds_that_the_router_would_refuse_are_named(check: Check) -> None:
    bounds = {f"{ARGS}.min_replicas": 1, f"{ARGS}.max_replicas": 3}

    def router(config: dict[str, int]) -> tuple[int, str]:
        return check(bounds | {"applications.0.deployments": [{"name": "Router", "user_config": config}]})

    assert router({"min_replicas": 2, "max_replicas": 2}) == (0, "")
    status, err = router({"max_replicas": 4})
    assert status == 1
    assert "Router.user_config.max_replicas is 4; it must be an integer from 1 to 3" in err


def test_the_schema_accepts_the_arguments_of_every_overlay_and_no_unknown_field() -> None:
    schema = json.loads(run_cli("check", "--schema").out)
    files = [FILE, *(FILE.parents[1] / "k8s" / "overlays").glob("*/serve-config.yaml")]
    assert len(files) > 4
    for file in files:
        args = yaml.safe_load(file.read_text())["applications"][0]["args"]
        jsonschema.validate(args, schema)
    with pytest.raises(jsonschema.ValidationError, match="modle"):
        jsonschema.validate({"modle": "a"}, schema)


def test_a_file_or_the_schema_is_needed() -> None:
    ran = run_cli("check")
    assert (ran.status, ran.out) == (2, "")
    assert "FILE is missing" in ran.err
