"""``spectra serve``: one command from nothing to a server, until it is told to stop."""

from __future__ import annotations

import contextlib
import sys

from app.composition.operation import log_options
from app.config.serve import ServeConfig
from app.inputs.default_model import DEFAULT_MODEL
from app.serving.certificates import CertificateFiles
from app.serving.guide import guide
from app.serving.server import Server
from deployments.observability.logs import configure


def run(
    config: ServeConfig, host: str, port: int, address: str | None, certificate: CertificateFiles | None = None
) -> int:
    """Serve until told to stop; returns the exit status. The arguments are those of ``Server``."""
    configure(log_options(config), "serve")
    server = Server(config, host, port, address, certificate)
    server.announce(f"Starting {config.served_name} (speculation: {config.method}) ...")
    server.install_signals()
    ours = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # Ray writes to stdout when a worker dies; there only "Ready" belongs
        try:
            server.start()
            if not server.stopping:
                print(f"Ready: {server.url}", file=ours, flush=True)
                if config.playground:
                    server.announce(f"Playground: {server.url.removesuffix('v1')}")
                if config.model == DEFAULT_MODEL and config.api_keys is None and certificate is None:
                    server.announce(guide(server.url, config.served_name))
            server.wait()
            server.announce("Stopping ...")
        finally:
            server.stop()
    return 0
