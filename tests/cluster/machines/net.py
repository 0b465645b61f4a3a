"""A network of machines that are namespaces of this one: a switch, and a cable to each of them.

All of it lives in namespaces of processes that end with ours, whatever ends it: the kernel then takes links, addresses
and mounts away, and nothing of this machine's own network is ever touched. One network may be up at a time, because
what runs on its machines needs all cores; another one waits for a lock.
"""

from __future__ import annotations

import fcntl
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from tests.cluster.machines.machine import NetworkMachine
from tests.cluster.machines.namespaces import TransportOf

LOCK = Path(tempfile.gettempdir()) / "spectra-machines.lock"
BRIDGE, CLIENT = "switch", "client"
V4, V6 = "10.77.0.{}", "fd77::{:x}"


class Net:
    """A switch and machines, within a ``with`` block.

    Args:
        ipv6: machines have addresses of IPv6 alone.
    """

    def __init__(self, ipv6: bool = False) -> None:
        self._form = V6 if ipv6 else V4
        self._stack = ExitStack()
        self._switch = 0
        self.machines: dict[str, NetworkMachine] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            lock = stack.enter_context(LOCK.open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # released with the process
            self._switch = _first_process(stack, "echo up; read -r _", "--net")
            self.in_switch("ip", "link", "add", BRIDGE, "type", "bridge")
            self.in_switch("ip", "link", "set", BRIDGE, "up")
            stack.callback(self._end)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _end(self) -> None:
        for machine in self.machines.values():
            machine.kill()

    def machine(self, name: str, volume: Path | None = None) -> NetworkMachine:
        """The machine of that name, made and started if there is none.

        ``volume`` is a folder of ours that it has at ``VOLUME`` and that outlives it.
        """
        if name not in self.machines:
            number = len(self.machines) + 1
            made = NetworkMachine(self, name, number, self._form.format(number), volume)
            made.start()
            self.machines[name] = made
            for machine in self.machines.values():
                machine.path("/etc/hosts").write_text(self.hosts)
        return self.machines[name]

    def client(self, base_url: str, **options: object) -> httpx.Client:
        """HTTP from a machine of the network on which nothing of ours runs."""
        return httpx.Client(base_url=base_url, transport=TransportOf(self.machine(CLIENT).pid), **options)

    @property
    def hosts(self) -> str:
        """Content of /etc/hosts."""
        names = [f"{machine.address} {machine.name}" for machine in self.machines.values()]
        return "\n".join(["127.0.0.1 localhost", "::1 localhost", *names, ""])

    def plug(self, name: str, pid: int) -> None:
        """Lay a cable from the switch to a machine, where it is called eth0."""
        self.unplug(name)
        self.in_switch("ip", "link", "add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self.in_switch("ip", "link", "set", "dev", name, "master", BRIDGE, "up")

    def unplug(self, name: str) -> None:
        """Take a machine's cable away, if it has one."""
        subprocess.run(
            ["nsenter", "-t", str(self._switch), "-n", "ip", "link", "del", "dev", name], stderr=subprocess.DEVNULL
        )

    def in_switch(self, *command: str) -> None:
        """Run a command on the switch."""
        done = subprocess.run(
            ["nsenter", "-t", str(self._switch), "-n", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}"


def _first_process(stack: ExitStack, script: str, *namespaces: str) -> int:
    command = ["unshare", *namespaces, "sh", "-c", script]
    process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process.pid
