"""``spectra serve``: starts a server and waits until a signal stops it."""

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
    """Serve until SIGINT or SIGTERM, with the arguments of ``Server``; return the exit status."""
    configure(log_options(config), "serve")
    server = Server(config, host, port, address, certificate)
    server.announce(f"Starting {config.served_name} (speculation: {config.method}) ...")
    server.install_signals()
    stdout = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # Ray prints when a worker dies; stdout is for "Ready" alone
        try:
            server.start()
            if not server.stopping:
                print(f"Ready: {server.url}", file=stdout, flush=True)
                if config.playground:
                    server.announce(f"Playground: {server.url.removesuffix('v1')}")
                if config.model == DEFAULT_MODEL and config.api_keys is None and certificate is None:
                    server.announce(guide(server.url, config.served_name))
            server.wait()
            server.announce("Stopping ...")
        finally:
            server.stop()
    return 0
