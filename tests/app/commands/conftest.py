from __future__ import annotations

import warnings

from tests.support.spectra_command import own_cache, own_threads

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing Serve warns
    import ray.serve.schema  # noqa: F401

__all__ = ["own_cache", "own_threads"]
