"""``spectra serve``: starts a server and waits until a signal stops it."""

from __future__ import annotations

import argparse
import contextlib
import sys

from app.config.flags import add_group, add_help_all, config_of_flags
from app.config.serve import GROUPS, ServeConfig
from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.devices import check_cache
from app.inputs.models import check_model
from speculators.methods import method_names

DESCRIPTION = """\
Start the server on this machine and print "Ready: URL" once a request would succeed. Ctrl-C or SIGTERM stops it.

  POST /v1/chat/completions  /v1/completions  /v1/responses  /tokenize  /detokenize
  GET  /v1/models  /ready  /health  /metrics (Prometheus)  / (playground)  /operator (what the server does now)

A request names another method as "speculative": {"method": "suffix"}; /v1/models lists the methods of this server.
A refused request gets a JSON error that names the field and what is allowed. The log has it too, without texts that
clients sent: in serve/replica_spectra_Ingress_* of the folder that the start prints.

Flags from --model on are also environment variables (--max-nodes: SPECTRA_MAX_NODES) and keys of build_app's
arguments in a Ray Serve config file (max_nodes). A flag whose default is true has --no-NAME.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [--model MODEL] [flags]"
    add_help_all(parser)
    server = parser.add_argument_group("server", "Where the server listens and runs.")
    server.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    server.add_argument("--port", type=int, default=8000, metavar="N", help="port to listen on (default: 8000)")
    server.add_argument("--ray-address", metavar="TEXT", help="join a running Ray cluster ('auto'), start no Ray")
    server.add_argument("--tls-cert", metavar="FILE", help="serve HTTPS with this certificate chain (PEM)")
    says = "its private key (PEM, no password); both are read again when they change"
    server.add_argument("--tls-key", metavar="FILE", help=says)
    for group in GROUPS:
        add_group(parser, group.model_config["title"], group.__doc__, group.model_fields)


def config_from(arguments: argparse.Namespace) -> ServeConfig:
    """Return the configuration of the flags, once the model, method, files and libraries that it names were checked."""
    config = config_of_flags(arguments)
    method_names(config.method)
    check_model(config.model)
    from app.composition.checks import checked  # loads the methods, for which a wrong value does not wait

    return checked(config)


def run(arguments: argparse.Namespace) -> int:
    config = config_from(arguments)
    if arguments.ray_address is None:
        check_cache(config.kv_gib, config.stage_device)
    from app.composition.operation import log_options
    from app.serving.certificates import certificate_files
    from app.serving.guide import guide
    from app.serving.server import Server
    from deployments.observability.logs import configure

    certificate = certificate_files(arguments.tls_cert, arguments.tls_key)
    configure(log_options(config), "serve")
    server = Server(config, arguments.host, arguments.port, arguments.ray_address, certificate)
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
