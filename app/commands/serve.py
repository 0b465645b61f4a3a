"""``spectra serve``: flags to configuration."""

from __future__ import annotations

import argparse
import json
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from app.config.errors import config_of
from app.config.fields import GROUPS
from app.config.method_fields import SECTIONS
from app.config.serve import ServeConfig
from app.inputs.devices import check_cache
from app.inputs.models import check_model
from engine.errors import ConfigError
from speculators.methods import method_names

DESCRIPTION = """\
Start the server on this machine and print "Ready: URL" once a request would succeed. Ctrl-C or SIGTERM stops it.
Every flag from --model on is also a key of build_app's arguments in a Ray Serve config file; what is true by default
is switched off by --no-NAME as well.
"""
REPEATED = ("name",)  # flags that may be given several times
OBJECTS = {
    name for name, info in ServeConfig.model_fields.items() if get_origin(info.annotation) is dict or name in SECTIONS
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Make ``parser`` that of ``spectra serve``."""
    server = parser.add_argument_group("server", "Where it listens and runs.")
    server.add_argument("--host", default="127.0.0.1", help="interface to listen on, of IPv6 too (default: 127.0.0.1)")
    server.add_argument("--port", type=int, default=8000, metavar="N", help="port to listen on (default: 8000)")
    server.add_argument(
        "--ray-address", metavar="TEXT", help="join a running Ray cluster ('auto') instead of starting one"
    )
    server.add_argument(
        "--tls-cert", metavar="FILE", help="speak HTTPS with this certificate chain (PEM, the server's own first)"
    )
    server.add_argument(
        "--tls-key", metavar="FILE", help="its private key (PEM, no password); new files are taken over while it runs"
    )
    for fields in GROUPS:
        group = parser.add_argument_group(fields.TITLE, fields.__doc__)
        for name, info in fields.model_fields.items():
            _add_flag(group, name, info)


def _add_flag(group: Any, name: str, info: FieldInfo) -> None:
    default = "{}" if info.default_factory is not None else info.default
    default = str(default).lower() if isinstance(default, bool) else default
    suffix = "" if default is None else f" (default: {default})"
    group.add_argument(
        flag(name),
        default=argparse.SUPPRESS,
        metavar=_metavar(info.annotation),
        action="append" if name in REPEATED else "store",
        help=f"{info.description}{suffix}".replace("%", "%%"),
    )
    if info.default is True:
        off = {"action": "store_const", "const": "false", "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
        group.add_argument(f"--no-{flag(name)[2:]}", dest=name, **off)


def _metavar(annotation: Any) -> str:
    """The kind of value: of several kinds, the first."""
    kind = annotation
    while get_origin(kind) in (types.UnionType, Union, Annotated):
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return "{" + ",".join(map(str, get_args(kind))) + "}"
    return {int: "N", float: "X", str: "TEXT", bool: "{true,false}"}.get(kind, "JSON")


def flag(field: str) -> str:
    """The flag of a field."""
    return "--" + field.replace("_", "-")


def config_from(arguments: argparse.Namespace) -> ServeConfig:
    """The configuration the flags describe; what it names has been looked at.

    Raises:
        ConfigError: names the flag, the value and what would be right.
        UnknownMethodError: the method is unknown or not available yet.
    """
    given = {name: value for name, value in vars(arguments).items() if name in ServeConfig.model_fields}
    objects = {name: _json_object(name, given[name]) for name in given if name in OBJECTS}
    config = config_of(given | objects, flag)
    method_names(config.method)
    check_model(config.model)
    from app.composition.checks import checked  # loads the methods, for which a wrong value does not wait

    return checked(config)


def _json_object(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{flag(name)} is {text!r}: not a JSON object ({error})") from None


def run(arguments: argparse.Namespace) -> int:
    """Start and wait."""
    config = config_from(arguments)
    if arguments.ray_address is None:
        check_cache(config.kv_gib, config.stage_device)
    from app.serving import run as running
    from app.serving.certificates import certificate_files

    certificate = certificate_files(arguments.tls_cert, arguments.tls_key)
    return running.run(config, arguments.host, arguments.port, arguments.ray_address, certificate)
