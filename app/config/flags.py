"""Configuration fields as flags of commands and as environment variables."""

from __future__ import annotations

import argparse
import json
import os
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from app.config.errors import NESTED, REMOVED, config_of
from app.config.fields import ADVANCED
from app.config.serve import ServeConfig
from engine.errors import ConfigError

PREFIX = "SPECTRA_"  # of environment variables
KINDS = {
    **dict.fromkeys(("drafter", "draft_model", "retrieval_cache"), "DIR"),
    **dict.fromkeys(("heads", "api_keys", "simulate_answers"), "FILE"),
    "model": "DIR|ID",
    "retrieval": "DIR|URL",
}
"""Kinds of values that a type does not show."""
FIELDS = ServeConfig.model_fields
OBJECTS = {name for name, info in FIELDS.items() if get_origin(info.annotation) is dict or name in NESTED}


def flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def is_advanced(field: str) -> bool:
    """Whether only ``--help-all`` shows the field."""
    extra = FIELDS[field].json_schema_extra
    return isinstance(extra, dict) and ADVANCED in extra


def add_field(group: Any, field: str, option: str | None = None) -> None:
    """Add the flag of a field to a parser or a group of it, under the name ``option`` if given.

    A field that is true by default also gets ``--no-NAME``.
    """
    info = FIELDS[field]
    default = None if info.default_factory is not None else info.default
    default = str(default).lower() if isinstance(default, bool) else default
    text = f"{info.description}{'' if default is None else f' (default: {default})'}".replace("%", "%%")
    action = group.add_argument(
        option or flag(field),
        dest=field,
        default=argparse.SUPPRESS,
        metavar=KINDS.get(field) or metavar(info.annotation),
        action="append" if field == "name" else "store",
        help=argparse.SUPPRESS if is_advanced(field) else text,
    )
    action.full_help = text
    if info.default is True:
        off = {"action": "store_const", "const": "false", "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
        group.add_argument(f"--no-{flag(field)[2:]}", dest=field, **off)


def add_group(
    parser: argparse.ArgumentParser, title: str | None, description: str | None, fields: Iterable[str]
) -> None:
    """Add a titled group of flags; ``--help`` leaves out a group that has only advanced ones.

    A field whose flag the command has already, with another meaning, has none: ``--prediction`` of `spectra generate`.
    """
    group = parser.add_argument_group()
    for field in fields:
        if flag(field) not in parser._option_string_actions:
            add_field(group, field)
    group.full_title = title, description  # type: ignore[attr-defined]
    if not all(map(is_advanced, fields)):
        group.title, group.description = title, description


def add_help_all(parser: argparse.ArgumentParser) -> None:
    """Add ``--help-all``, and flags of earlier versions that are refused with what replaces them."""
    parser.add_argument("--help-all", action=_HelpAll, nargs=0, help="show all flags and exit")
    for field in REMOVED:
        parser.add_argument(flag(field), dest=field, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


class _HelpAll(argparse.Action):
    """Prints the help with the advanced flags."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        for action in parser._actions:
            action.help = getattr(action, "full_help", action.help)
        for group in parser._action_groups:
            group.title, group.description = getattr(group, "full_title", (group.title, group.description))
        parser.print_help()
        parser.exit()


def metavar(annotation: Any) -> str:
    """Return the kind of value that a field takes; of several kinds, the first."""
    kind = annotation
    while get_origin(kind) in (types.UnionType, Union, Annotated):
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return "{" + ",".join(map(str, get_args(kind))) + "}"
    return {int: "N", float: "X", str: "TEXT", bool: "{true,false}"}.get(kind, "JSON")


def config_of_flags(arguments: argparse.Namespace, fields: Iterable[str] = FIELDS, **defaults: Any) -> ServeConfig:
    """Return the configuration of the flags; a flag that is not given has its environment variable, then a default.

    Raises ConfigError, which names the flag, the value and what is allowed.

    Args:
        arguments: of the command line; attributes that are no fields are ignored.
        fields: that the command has.
        defaults: of this command, where they differ from those of ``ServeConfig``.
    """
    known = {*fields, *REMOVED}
    variables = {field: value for field in known if (value := os.environ.get(PREFIX + field.upper()))}
    flags = {name: value for name, value in vars(arguments).items() if name in known}

    def name(field: str) -> str:
        return PREFIX + field.upper() if field in variables and field not in flags else flag(field)

    given: Mapping[str, Any] = defaults | variables | flags
    return config_of({field: _parsed(field, value, name) for field, value in given.items()}, name)


def value_of(arguments: argparse.Namespace, field: str) -> Any:
    """Return the value of one field: of the flag, of the environment, or the default."""
    return getattr(arguments, field, os.environ.get(PREFIX + field.upper()) or FIELDS[field].default)


def _parsed(field: str, value: Any, name: Callable[[str], str]) -> Any:
    if field not in OBJECTS or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name(field)} is {value!r}, which is not a JSON object: {error}") from None
