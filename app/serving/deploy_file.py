"""Checks a Serve config file or a RayService before it is deployed.

Ray silently drops keys that it does not know, in `serve deploy`, in its dashboard and so in a RayService, before our
code runs. Here the same schemas refuse them.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from app.composition.checks import checked
from app.config.errors import config_of
from app.config.serve import ServeConfig
from app.inputs.default_model import HUB_ID
from app.inputs.models import drafter_path, target_name
from deployments.options import ScalingOptions
from deployments.router.scaling.policy import bounds_of
from engine.errors import ConfigError, SpectraError
from engine.model.resolve import check_model_name

if TYPE_CHECKING:
    from ray.serve.schema import ServeApplicationSchema

OURS = ("spectra_serve.build_app", "app.builder.build_app")  # import paths, or with a colon
CONFIG = "config.json"  # in every model's directory
STAND_INS = {"model": HUB_ID, "draft_model": HUB_ID, "heads": None, "retrieval": None, "api_keys": None}
"""Fields that may hold paths of other machines -> a value that passes the checks on this one, without the hub."""


def check_deploy_file(path: Path, *, elsewhere: bool = False) -> list[str]:
    """Return one sentence for each mistake in the file, except for missing keys, which Ray refuses.

    With ``elsewhere``, absolute paths in it are those of other machines and not looked for. Raises ConfigError if the
    file cannot be read, or holds no Serve config.
    """
    from ray.serve.schema import ServeDeploySchema

    try:
        deployed = ServeDeploySchema.model_validate(_serve_config(path), extra="forbid")
    except ValidationError as error:
        return [_sentence(one) for one in error.errors(include_url=False)]
    wrong = []
    for place, application in enumerate(deployed.applications):
        if is_ours(application.import_path):
            wrong += [f"applications[{place}].{sentence}" for sentence in _wrong_in(application, elsewhere)]
    return wrong


def is_ours(import_path: str) -> bool:
    """Whether ``build_app`` makes the application."""
    return import_path.replace(":", ".") in OURS


def _wrong_in(application: ServeApplicationSchema, elsewhere: bool) -> list[str]:
    try:
        config = config_of(application.args)
        bounds = ScalingOptions(config.least_pipelines, config.most_pipelines)
    except ConfigError as error:
        return [f"args: {error}"]
    wrong = [f"args: {sentence}" for sentence in _wrong_args(config, elsewhere)]
    for deployment in application.deployments:
        if deployment.name == "Router" and isinstance(deployment.user_config, dict):
            try:
                bounds_of(deployment.user_config, bounds)
            except ConfigError as error:
                wrong.append(f"deployments: {error}")
    return wrong


def _wrong_args(config: ServeConfig, elsewhere: bool) -> list[str]:
    if elsewhere:
        paths = {name for name in STAND_INS if str(getattr(config, name)).startswith("/")}
        config = config.model_copy(update={name: STAND_INS[name] for name in paths})
    try:
        config = checked(config)
    except SpectraError as error:
        return [str(error)]
    wrong = []
    names = {"model": target_name(config.model)}
    if config.draft_model is not None:
        names["draft_model"] = drafter_path(config.draft_model)
    for field, name in names.items():
        folder = Path(name).expanduser()
        if folder.is_dir() and not (folder / CONFIG).is_file():
            wrong.append(f"{field} is {name!r}; that directory holds no {CONFIG}, as a model's does")
        try:
            check_model_name(name)
        except ConfigError as error:
            wrong.append(f"{field}: {error}")
    if config.heads is not None and not Path(config.heads).is_file():
        wrong.append(f"heads is {config.heads!r}; there is no such file")
    return wrong


def _serve_config(path: Path) -> dict[str, Any]:
    """Return the Serve config of a file, or that of the first RayService among its documents."""
    try:
        documents = [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if isinstance(one, dict)]
        found = next((one for one in documents if one.get("kind") == "RayService" or "applications" in one), {})
        if found.get("kind") == "RayService":
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
    from ray.serve import schema

    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]).lstrip(".")
    if error["type"] != "extra_forbidden":
        return f"{place} is {error['input']!r}: {error['msg']}"
    models = [one for one in vars(schema).values() if isinstance(one, type) and issubclass(one, BaseModel)]
    known = {name for model in models for name in model.model_fields}
    near = get_close_matches(str(error["loc"][-1]), known, 1)
    return f"{place} is unknown to Serve, which would drop it{f'; did you mean {near[0]}?' if near else ''}"
