"""Who may ask for what is said once; a file of keys is looked at before anything starts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from app.commands.serve import config_from
from app.composition.operation import access_options
from engine.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"api_keys": "k", "tenant_header": "X-Tenant"}, "--tenant-header is X-Tenant, but --api-keys is set"),
        ({"api_keys": "k", "trust_clients": "true"}, "--trust-clients is true, but --api-keys is set"),
        ({"api_keys": "/nowhere/keys"}, "/nowhere/keys cannot be read"),
        ({"tenant_header": "X Tenant"}, "--tenant-header is X Tenant; it must be 1 to 64 letters"),
        ({"cors_origins": "https://a.example,b.example"}, "--cors-origins is https://a.example,b.example"),
        ({"cors_origins": ["https://a.example/path"]}, "must be an origin"),
    ],
)
def test_what_is_ambiguous_or_absent_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from(argparse.Namespace(**given))
    assert says in str(caught.value)


def test_the_options_of_an_ingress_are_those_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("keys").touch()
    given = {"api_keys": "keys", "cors_origins": "https://a.example, https://b.example:8443", "ingress_replicas": "3"}
    options = access_options(config_from(argparse.Namespace(**given)))
    assert options.api_keys == str(tmp_path / "keys")  # replicas run in other folders
    assert options.cors_origins == ("https://a.example", "https://b.example:8443")
    assert (options.replicas, options.trust_clients, options.open_metrics) == (3, False, False)
