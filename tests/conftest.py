"""The environment of all tests, their tiers, and the tiny checkpoint of most."""

from __future__ import annotations

import gc
import logging
import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from deployments.observability.logs import OURS, SERVE

# Before anything imports Ray: no token file, loopback only, no usage report, and no niceness for its workers.
os.environ |= {
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Seconds; a slow machine needs more than the 30 to 60 that Ray gives its dashboard.
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "600",
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "600",
    # Tiny models gain nothing from threads, and threads of a busy machine spin while they wait for each other.
    "OMP_NUM_THREADS": "1",
    # Kernels of ``engine.cuda`` run on a CPU. Triton reads this when it is imported, which transformers does.
    "TRITON_INTERPRET": "1",
    # Step times measured alongside other tests must not become the user's; compiled loops are kept between runs.
    "XDG_CACHE_HOME": os.path.join(tempfile.gettempdir(), f"spectra-tests-{os.getuid()}"),
}

# The same examples in every run, except in ``make test-all``, which draws new ones and prints how to repeat a failure.
# A slow machine is no error.
SLOW = [HealthCheck.too_slow]
settings.register_profile("tests", max_examples=25, deadline=None, derandomize=True, suppress_health_check=SLOW)
settings.register_profile("thorough", max_examples=500, deadline=None, print_blob=True, suppress_health_check=SLOW)
settings.load_profile("tests")


@pytest.fixture(scope="session")
def tiny_checkpoint() -> Path:
    """Directory of a random Llama of four layers and its byte-level tokenizer with a chat template."""
    from tests.support.tiny_models import saved_checkpoint  # builds on torch, which many files do without

    return saved_checkpoint()


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Restore the handlers and levels that a test changes when it configures logging."""
    loggers = [logging.getLogger(name) for name in ("", *OURS, SERVE)]
    before = [(logger.handlers[:], logger.level) for logger in loggers]
    yield
    for logger, (handlers, level) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)


def pytest_configure(config: pytest.Config) -> None:
    """Register the tiers, and the division of work where pytest-xdist is not switched off."""
    from tests.support.tiers import TierGuard  # imports Triton, which reads the environment above

    config.pluginmanager.register(TierGuard())
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.import_plugin("tests.support.units_of_work")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Switch the garbage collector off while tests are imported, which takes a fifth of that time otherwise."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
