"""What a server needs of its machine: Ray's switches, and ports."""

from __future__ import annotations

import errno
import os
import random
import secrets
import shlex
import socket
import tempfile
from pathlib import Path

from app.serving.haproxy import BINARY, IN_IMAGE, LOOPBACK, haproxy_script
from engine.errors import ConfigError

PORTS, PORTS_EACH = (11_000, 21_000), 200  # below the ports of outgoing connections; so many for each server
NODE_HTTP_PORTS, NODE_GRPC_PORTS = (20_000, 24_999), (25_000, 29_999)  # of Serve's replicas on a node of its own

SWITCHES = {  # of every Ray that runs the application
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
    "RAY_SERVE_DIRECT_INGRESS_SHUTDOWN_BUFFER_S": "1",
    # A replica that comes or goes makes HAProxy start anew; the process before it ends its streams for so long
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
    # A replica that refuses a connection has gone, whatever HAProxy heard last: it asks the next one, in the end
    # Serve's own proxy. By default it gives a replica up at its third refusal, and a request at the fourth of all.
    "RAY_SERVE_HAPROXY_OBSERVE_ERROR_LIMIT": "1",
    "RAY_SERVE_HAPROXY_RETRIES": "100",  # more than there are replicas
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",
    # On a busy machine a proxy takes long to start. By default Serve kills it after 5 s, and the server's start fails.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_worker_niceness": "0",  # Ray's default of 15 starves the model next to anything else
    "RAY_preload_python_modules": "spectra_serve",  # or workers would take packages of our names from the user's folder
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}

JOIN_VARIABLES = (  # of this process, which programs that join its Ray need too
    # Without it Ray would look for a cluster at 127.0.0.1 under this machine's other address, for two minutes.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_AUTH_TOKEN_PATH",
    "RAY_USE_TLS",
    "RAY_TLS_SERVER_CERT",
    "RAY_TLS_SERVER_KEY",
    "RAY_TLS_CA_CERT",
)


def serve_environment(
    scratch: str, first_port: int, host: str = LOOPBACK, bundle: Path | None = None
) -> dict[str, str]:
    """Ray's and Serve's switches; they must be set before Ray is imported. They make HTTP 6 to 11 times faster.

    Args:
        scratch: folder of this server alone.
        first_port: of its claimed ports.
        host: interface for clients.
        bundle: PEM file of its certificate and key; None: plain HTTP.
    """
    return {
        **SWITCHES,
        # HAProxy's files: the defaults are shared by every server of the machine
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{scratch}/haproxy.cfg",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{scratch}/s",
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": scratch,
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": f"{scratch}/server-state",
        **_proxy_ports(first_port),
        **haproxy_script(scratch, host, bundle),
    }


def node_environment(haproxy: str = IN_IMAGE) -> dict[str, str]:
    """What every node of a cluster has in its environment before its Ray starts. A node (a pod, a machine) runs one Ray
    and nothing else, so that HAProxy's files and its own ports are Serve's defaults, and replicas have wide ranges: a
    port is given out anew when the last HAProxy that knew it has ended, which is after an hour.

    Args:
        haproxy: path of the script that ``write_node_script`` writes.
    """
    (http, last_http), (grpc, last_grpc) = NODE_HTTP_PORTS, NODE_GRPC_PORTS
    return {
        **SWITCHES,
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(http),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(last_http),
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(grpc),
        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(last_grpc),
        BINARY: haproxy,
    }


def local_environment() -> dict[str, str]:
    """Switches of a Ray that only this server uses; a cluster that is joined has its own. They turn off
    ``ray list tasks``, ``ray timeline``, Ray's own metrics and its dashboard's figures; ours come from the application.
    """
    return {
        # Serve's replicas unpickle what comes over gRPC, and listen on every interface: each call shows this token.
        # Processes inherit it; by default Ray would write one into the home folder, for every cluster of this user.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # all other listeners on 127.0.0.1
        # The cluster keeps an event of each of the latest 100,000 calls, and every process sends its own once a second
        "RAY_task_events_report_interval_ms": "0",
        # The agents read /proc for every process of Ray, and every process reports, although no dashboard runs
        "RAY_enable_metrics_collection": "0",
        "REPORTER_UPDATE_INTERVAL_MS": "60000",
    }


def claim_ports() -> socket.socket:
    """Claim ``PORTS_EACH`` TCP ports for one server, by binding the first until the socket is closed.

    Servers of one machine must not share ports. By default all of them count up from the same ones, and the HAProxy of
    one server then sends requests to a replica of another or, while its own replicas start, to the other's fallback.

    Raises:
        ConfigError: every range is claimed.
    """
    ranges = range(*PORTS, PORTS_EACH)
    for first in random.SystemRandom().sample(ranges, len(ranges)):
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", first))
        except OSError:
            claim.close()
        else:
            return claim
    raise ConfigError(f"no {PORTS_EACH} ports from {PORTS[0]} to {PORTS[1]} on 127.0.0.1 are left for replicas")


def _proxy_ports(first: int) -> dict[str, str]:
    """Where Serve's replicas, HAProxy's own pages and the proxy that HAProxy falls back to listen."""
    return {
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(first + 1),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(first + 90),
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(first + 91),
        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(first + 180),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(first + 181),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(first + 182),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(first + 183),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(first + 184),
    }


def folder_for_sockets() -> str:
    """Where a server's temporary folder goes. HAProxy takes socket paths of at most 97 characters, and Serve puts 57
    of its own into the one it makes of ours.

    Raises:
        ConfigError: the path of the temporary folder is too long, and ``/tmp`` cannot be written.
    """
    usual, longest = tempfile.gettempdir(), 97 - len("/spectra-12345678") - 57 - len("/s")
    if len(usual) <= longest:
        return usual
    if not os.access("/tmp", os.W_OK):
        raise ConfigError(
            f"TMPDIR is {usual}; where /tmp cannot be written, as here, paths of sockets allow it {longest} characters"
        )
    return "/tmp"


def check_port(host: str, port: int) -> None:
    """Raises ConfigError if we could not listen there; Serve would only log it."""
    if not 1 <= port <= 65535:
        raise ConfigError(f"--port is {port}; it must be 1 to 65535")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except socket.gaierror as error:
            raise ConfigError(f"--host is {host!r}: {error.strerror}") from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(f"port {port} on {host} is taken; choose another with --port") from error
            raise ConfigError(f"port {port} on {host} cannot be listened on: {error.strerror}") from error


def write_join_file(folder: Path, address: str) -> Path:
    """Write a file that a shell sources before its programs join this process's Ray; return its path.

    It holds Ray's token, so only this user can read it.

    Args:
        folder: of the server.
        address: of the Ray, ``HOST:PORT``.
    """
    values = {"RAY_ADDRESS": address} | {name: os.environ[name] for name in JOIN_VARIABLES if name in os.environ}
    path = folder / "ray.env"
    write_private(path, "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items()).encode())
    return path


def write_private(path: Path, content: bytes) -> None:
    """Replace a file atomically; only this user can read it."""
    partial = path.with_name(f"{path.name}.new")
    partial.touch(0o600)
    partial.write_bytes(content)
    partial.replace(path)
