"""The environment of all tests, and the tiny checkpoint of most."""

from __future__ import annotations

import gc
import logging
import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from deployments.observability.logs import OURS, SERVE
from tests.support.machines.recovery_table import RecoveryTable

# Before anything imports Ray: no token file, loopback only, no usage report, and no niceness for its workers.
os.environ |= {
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Tiny models gain nothing from threads, and on a busy machine threads wait for each other with all their might.
    "OMP_NUM_THREADS": "1",
    # Kernels of ``engine.cuda`` run on a CPU. Triton's own library obeys what it finds when it is imported, as it is
    # with transformers, where it is installed.
    "TRITON_INTERPRET": "1",
    # Step times measured beside other tests must not become the user's; compiled loops are kept between runs.
    "XDG_CACHE_HOME": os.path.join(tempfile.gettempdir(), f"spectra-tests-{os.getuid()}"),
}

# Every run draws other examples, so a few tens a run are enough; on a busy machine one may take any time. After a
# change of what they are about: ``pytest --hypothesis-profile thorough``.
settings.register_profile("tests", max_examples=25, deadline=None)
settings.register_profile("thorough", max_examples=500, deadline=None)
settings.load_profile("tests")


@pytest.fixture(scope="session")
def tiny_checkpoint() -> Path:
    """Directory of a random Llama of four layers and its byte-level tokenizer with a chat template."""
    from tests.support.tiny_models import saved_checkpoint  # builds on torch, which many files do without

    return saved_checkpoint()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Handlers and levels of a test that configures logging, as a process of the application does, end with it."""
    loggers = [logging.getLogger(name) for name in ("", *OURS, SERVE)]
    before = [(logger.handlers[:], logger.level) for logger in loggers]
    yield
    for logger, (handlers, level) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)


def pytest_configure(config: pytest.Config) -> None:
    """Works with ``-p no:xdist`` as well."""
    config.pluginmanager.register(RecoveryTable())
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.import_plugin("tests.support.cluster_process")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported stays: looking for garbage in it would take a fifth of the collection's time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, and what mostly waits runs beside it."""

    def place(item: pytest.Item) -> int:
        if item.get_closest_marker("machines"):
            return 1
        return 0 if item.get_closest_marker("cluster") else 2

    items.sort(key=place)
