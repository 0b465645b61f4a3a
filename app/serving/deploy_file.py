"""A Serve config file, or a RayService, before it is deployed: what is misspelt in it.

Ray drops keys that it does not know, in `serve deploy`, in its dashboard and so in a RayService, before any of our code
runs. Here the same schemas refuse them.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from app.composition import checked
from app.config.errors import config_of
from engine.errors import ConfigError, SpectraError

OURS = "app.builder:build_app"  # whose args are ours to judge


def check_deploy_file(path: Path) -> list[str]:
    """Every mistake in the file, in a sentence each; Ray refuses by itself what is missing for a deployment to run.

    Raises:
        ConfigError: the file cannot be read, or holds no Serve config.
    """
    from ray.serve.schema import ServeDeploySchema

    given = _serve_config(path)
    try:
        deployed = ServeDeploySchema.model_validate(given, extra="forbid")
    except ValidationError as error:
        return [_sentence(one) for one in error.errors(include_url=False)]
    wrong = []
    for place, application in enumerate(deployed.applications):
        if application.import_path == OURS:
            try:
                checked(config_of(application.args))
            except SpectraError as error:
                wrong.append(f"applications[{place}].args: {error}")
    return wrong


def _serve_config(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        if isinstance(found, dict) and found.get("kind") == "RayService":
            found = yaml.safe_load(found["spec"]["serveConfigV2"])
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is a RayService without the text spec.serveConfigV2") from error
    if not isinstance(found, dict) or "applications" not in found:
        raise ConfigError(f"{path} is no Serve config file: it has no applications")
    return found


def _sentence(error: ErrorDetails) -> str:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]).lstrip(".")
    if error["type"] != "extra_forbidden":
        return f"{place} is {error['input']!r}: {error['msg']}"
    near = get_close_matches(str(error["loc"][-1]), _known(), 1)
    return f"{place} is unknown to Serve, which would drop it{f'; {near[0]} is meant?' if near else ''}"


def _known() -> set[str]:
    """The names of all fields of Serve's schemas."""
    from ray.serve import schema

    models = [one for one in vars(schema).values() if isinstance(one, type) and issubclass(one, BaseModel)]
    return {name for model in models for name in model.model_fields}
