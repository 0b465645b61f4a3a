"""What a server needs from its machine: Ray's environment, ports and folders."""

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

PORTS, PORTS_EACH = (11_000, 21_000), 200  # below the ports of outgoing connections; a range for each server
NODE_HTTP_PORTS, NODE_GRPC_PORTS = (20_000, 24_999), (25_000, 29_999)  # of Serve's replicas on a cluster's node

SWITCHES = {  # for every Ray that runs the application; HTTP is 6 to 11 times faster with them
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
    "RAY_SERVE_DIRECT_INGRESS_SHUTDOWN_BUFFER_S": "1",
    # HAProxy restarts when a replica comes or goes; the previous process has so long to finish its streams
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
    # A replica that refuses a connection is gone, even if HAProxy does not know yet: it tries the next one, and at last
    # Serve's own proxy. By default it gives up a replica at the third refusal, and a request at the fourth.
    "RAY_SERVE_HAPROXY_OBSERVE_ERROR_LIMIT": "1",
    "RAY_SERVE_HAPROXY_RETRIES": "100",  # more than there are replicas
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",
    # On a busy machine a proxy starts slowly. By default Serve kills it after 5 s, and the server does not start.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_worker_niceness": "0",  # with Ray's default of 15, any other program starves the model
    "RAY_preload_python_modules": "spectra_serve",  # or workers import the user's packages of the same names
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}

# Prefixes of the variables that programs need to join this process's Ray. Without the last, Ray would look for two
# minutes for a cluster at 127.0.0.1 under this machine's other address.
JOIN_PREFIXES = ("RAY_AUTH_", "RAY_USE_TLS", "RAY_TLS_", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")


def serve_environment(scratch: str, first: int, host: str = LOOPBACK, bundle: Path | None = None) -> dict[str, str]:
    """Return the variables for a server of this machine; they must be set before Ray is imported.

    The server has the folder ``scratch`` to itself, and the ports from ``first``; the others are as for
    ``haproxy_script``.
    """
    return {
        **SWITCHES,
        # HAProxy's files: by default all servers of the machine share them
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{scratch}/haproxy.cfg",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{scratch}/s",
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": scratch,
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": f"{scratch}/server-state",
        **_replica_ports((first + 1, first + 90), (first + 91, first + 180)),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(first + 181),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(first + 182),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(first + 183),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(first + 184),
        **haproxy_script(scratch, host, bundle),
    }


def node_environment(haproxy: str = IN_IMAGE) -> dict[str, str]:
    """Return the variables for a node of a cluster, with the script of ``write_node_script``, to set before Ray starts.

    A node (a pod, a machine) runs one Ray and nothing else, so HAProxy's files and own ports are Serve's defaults.
    Replicas have wide ranges: a port is free again when the last HAProxy process that knew it ends, after an hour.
    """
    return {**SWITCHES, **_replica_ports(NODE_HTTP_PORTS, NODE_GRPC_PORTS), BINARY: haproxy}


def _replica_ports(http: tuple[int, int], grpc: tuple[int, int]) -> dict[str, str]:
    bounds = {"MIN_HTTP": http[0], "MAX_HTTP": http[1], "MIN_GRPC": grpc[0], "MAX_GRPC": grpc[1]}
    return {f"RAY_SERVE_DIRECT_INGRESS_{name}_PORT": str(port) for name, port in bounds.items()}


def local_environment() -> dict[str, str]:
    """Return the variables for a Ray that only this server uses.

    They turn off ``ray list tasks``, ``ray timeline``, and Ray's metrics: the application has its own.
    """
    return {
        # Replicas listen on every interface and unpickle gRPC calls; each call must carry this token, which processes
        # inherit. By default Ray would write one into the home folder, for every cluster of this user.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # all other listeners on 127.0.0.1
        # Ray would keep an event of each of the latest 100,000 calls, and every process would send its own each second
        "RAY_task_events_report_interval_ms": "0",
        # Agents would read /proc for every process of Ray, and every process would report, without a dashboard
        "RAY_enable_metrics_collection": "0",
        "REPORTER_UPDATE_INTERVAL_MS": "60000",
    }


def claim_ports() -> socket.socket:
    """Claim ``PORTS_EACH`` TCP ports for one server: the returned socket binds the first until it is closed.

    By default the replicas of all servers count up from the same ports, and the HAProxy of one server would send
    requests to replicas of another. Raises ConfigError if every range is claimed.
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
    raise ConfigError(f"ports {PORTS[0]} to {PORTS[1]} are claimed, {PORTS_EACH} for each server; stop another server")


def folder_for_sockets() -> str:
    """Return where a server's temporary folder goes: paths of sockets are short. Raise ConfigError if nowhere fits."""
    # HAProxy allows 97 characters for the path of a socket, and Serve inserts 57.
    usual, longest = tempfile.gettempdir(), 97 - len("/spectra-12345678") - 57 - len("/s")
    if len(usual) <= longest:
        return usual
    if not os.access("/tmp", os.W_OK):
        raise ConfigError(f"TMPDIR is {usual}; it may have {longest} characters unless /tmp can be written")
    return "/tmp"


def check_port(host: str, port: int) -> None:
    """Raise ConfigError if a server cannot listen there, which Serve would only log."""
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
    """Write a file that a shell sources before its programs join this process's Ray at ``address``; return its path.

    It holds Ray's token, so only this user can read it.
    """
    joining = {name: value for name, value in os.environ.items() if name.startswith(JOIN_PREFIXES)}
    values, path = {"RAY_ADDRESS": address} | joining, folder / "ray.env"
    write_private(path, "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items()).encode())
    return path


def write_private(path: Path, content: bytes) -> None:
    """Replace a file atomically; only this user can read it."""
    partial = path.with_name(f"{path.name}.new")
    partial.touch(0o600)
    partial.write_bytes(content)
    partial.replace(path)
