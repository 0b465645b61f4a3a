"""Does ahead what a first start of ``spectra serve`` would: compiles, converts the default model, indexes texts.

    python -m tools.prepare

``make setup`` runs it. What is in the cache already is kept.
"""

from __future__ import annotations

import compileall
import sys

import spectra_serve
from app.config.serve import ServeConfig
from app.serving.preflight import check_model
from speculators.kernels import start_compiling


def main() -> int:
    """Fill the cache; return an exit status."""
    compiling = start_compiling()
    for package in spectra_serve.PACKAGES:
        compileall.compile_dir(spectra_serve.HOME / package, quiet=1)
    check_model(ServeConfig(), is_local=True)
    return 0 if compiling is None else compiling.wait()


if __name__ == "__main__":
    sys.exit(main())
