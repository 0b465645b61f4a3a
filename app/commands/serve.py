"""``spectra serve``: flags to configuration."""

from __future__ import annotations

import argparse
import json
import types
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from app.config.serve import ServeConfig
from engine.errors import ConfigError
from retrieval_store.stores.open import shown

DESCRIPTION = """\
Start the server on this machine and print "Ready: URL" once a request would succeed. Ctrl-C or SIGTERM stops it.
Every flag below is also a key of build_app's arguments in a Ray Serve config file.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Make ``parser`` that of ``spectra serve``."""
    parser.description = DESCRIPTION
    parser.add_argument("--host", default="127.0.0.1", help="interface to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (default: 8000)")
    parser.add_argument("--ray-address", help="join a running Ray cluster ('auto') instead of starting one")
    for name, info in ServeConfig.model_fields.items():
        _add_flag(parser, name, info)
    parser.set_defaults(run=run)


def _add_flag(parser: argparse.ArgumentParser, name: str, info: FieldInfo) -> None:
    default = "{}" if info.default_factory is not None else info.default
    suffix = "" if default is None else f" (default: {default})"
    note = ", JSON object" if info.default_factory is not None else ""
    parser.add_argument(
        "--" + name.replace("_", "-"),
        default=argparse.SUPPRESS,
        metavar=_metavar(info.annotation),
        help=f"{info.description}{note}{suffix}".replace("%", "%%"),
    )


def _metavar(annotation: Any) -> str:
    kinds = [annotation]
    if get_origin(annotation) is types.UnionType or get_origin(annotation) is not None:
        kinds = [kind for kind in get_args(annotation) if kind is not types.NoneType] or [annotation]
    if get_origin(annotation) is Literal:
        return "{" + ",".join(map(str, get_args(annotation))) + "}"
    if get_origin(kinds[0]) is Literal:
        return "{" + ",".join(map(str, get_args(kinds[0]))) + "}"
    return {int: "N", float: "X", str: "TEXT", bool: "{true,false}"}.get(kinds[0], "JSON")


def config_from(arguments: argparse.Namespace) -> ServeConfig:
    """The configuration the flags describe.

    Raises:
        ConfigError: names the flag, the value and what would be right.
    """
    given = {name: value for name, value in vars(arguments).items() if name in ServeConfig.model_fields}
    for name, field in ServeConfig.model_fields.items():
        if field.annotation != dict[str, Any]:
            continue
        if name in given:
            given[name] = _json_object(name, given[name])
    try:
        return ServeConfig.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        flag = "--" + str(first["loc"][0]).replace("_", "-") + ": " if first["loc"] else ""
        value = f" (given: {_shown(first['loc'][0], first['input'])!r})" if first["loc"] else ""
        raise ConfigError(f"{flag}{first['msg']}{value}") from None


def _shown(name: int | str, value: Any) -> Any:
    """A value as it may be printed."""
    return shown(value) if name == "retrieval" and isinstance(value, str) else value


def _json_object(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--{name.replace('_', '-')} is {text!r}: not a JSON object ({error})") from None


def run(arguments: argparse.Namespace) -> int:
    """Start and wait."""
    config = config_from(arguments)
    from app.serving import server

    return server.run(config, arguments.host, arguments.port, arguments.ray_address)
