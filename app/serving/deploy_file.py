"""A Serve config file, or a RayService, before it is deployed: what is misspelt in it.

Ray drops keys that it does not know, in `serve deploy`, in its dashboard and so in a RayService, before any of our code
runs. Here the same schemas refuse them.
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

OURS = ("spectra_serve.build_app", "app.builder.build_app")  # or with a colon; whose args are ours to judge
CONFIG = "config.json"  # in every model's directory
STAND_INS = {  # for paths of other machines; no hub is asked
    "model": HUB_ID,
    "draft_model": HUB_ID,
    "heads": None,
    "retrieval": None,
    "api_keys": None,
}


def check_deploy_file(path: Path, *, elsewhere: bool = False) -> list[str]:
    """Every mistake in the file, in a sentence each; Ray refuses by itself what is missing for a deployment to run.

    Args:
        path: of the file.
        elsewhere: absolute paths in it are those of other machines, and not looked for on this one.

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
        if is_ours(application.import_path):
            wrong += [
                f"applications[{place}].args: {sentence}" for sentence in _wrong_args(application.args, elsewhere)
            ]
            wrong += [f"applications[{place}].deployments: {sentence}" for sentence in _wrong_bounds(application)]
    return wrong


def is_ours(import_path: str) -> bool:
    """Whether an application is made by ``build_app``."""
    return import_path.replace(":", ".") in OURS


def _wrong_args(args: dict[str, Any], elsewhere: bool) -> list[str]:
    try:
        config = config_of(args)
        if elsewhere:
            paths = {name for name in STAND_INS if str(getattr(config, name)).startswith("/")}
            config = config.model_copy(update={name: STAND_INS[name] for name in paths})
        config = checked(config)
    except SpectraError as error:
        return [str(error)]
    return _missing(config)


def _wrong_bounds(application: ServeApplicationSchema) -> list[str]:
    """What the router would not take of its ``user_config``."""
    try:
        config = config_of(application.args)
        bounds = ScalingOptions(config.least_pipelines, config.most_pipelines)
        for deployment in application.deployments:
            if deployment.name == "Router" and isinstance(deployment.user_config, dict):
                bounds_of(deployment.user_config, bounds)
    except ConfigError as error:
        return [str(error)] if "user_config" in str(error) else []  # args are told of already
    return []


def _missing(config: ServeConfig) -> list[str]:
    """What is not where ``model``, ``draft_model`` and ``heads`` say; no hub is asked."""
    wrong = []
    drafter = None if config.draft_model is None else drafter_path(config.draft_model)
    for field, name in (("model", target_name(config.model)), ("draft_model", drafter)):
        if name is None:
            continue
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
    try:
        documents = [*yaml.safe_load_all(path.read_text(encoding="utf-8"))]
        found = next(filter(_is_to_check, documents), documents[0] if documents else None)
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


def _is_to_check(document: Any) -> bool:
    """Whether a document, of several in a file of manifests, is one to check."""
    return isinstance(document, dict) and (document.get("kind") == "RayService" or "applications" in document)


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
