"""A node that lacks a credential of the store is refused by name; no value of one travels."""

from __future__ import annotations

import pickle

import pytest

from app.composition.retrieval import retrieval_options
from app.config.serve import ServeConfig
from deployments.retrieval.environment import check_credentials, credentials_set
from engine.errors import ConfigError

PASSWORD = "SPECTRA_REDIS_PASSWORD"


def test_a_node_without_a_password_is_named_and_one_with_it_is_not() -> None:
    built = credentials_set({PASSWORD: "secret", "SPECTRA_REDIS_USERNAME": "", "OTHER": "x"})
    assert built == (PASSWORD,)
    check_credentials(built, "10.0.0.7", {PASSWORD: "another"})
    with pytest.raises(ConfigError, match=r"node 10\.0\.0\.7 has no SPECTRA_REDIS_PASSWORD in its environment"):
        check_credentials(built, "10.0.0.7", {PASSWORD: ""})
    check_credentials((), "10.0.0.7", {})


def test_options_hold_names_and_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "4711-secret")
    stored = retrieval_options(ServeConfig(retrieval="redis://127.0.0.1:1"))
    assert stored is not None
    assert stored.credentials == (PASSWORD,)
    assert b"4711-secret" not in pickle.dumps(stored)
    in_memory = retrieval_options(ServeConfig(live="default"))
    assert in_memory is not None
    assert in_memory.credentials == ()
