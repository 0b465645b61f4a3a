"""One machine: namespaces with an address, a host name, and folders for data that no other machine sees."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import psutil

from tests.cluster.machines.namespaces import INIT, OWN
from tests.support.tiny_models import saved_checkpoint

if TYPE_CHECKING:
    from tests.cluster.machines.net import Net

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
END_S = 30  # for killed processes to be gone


class NetworkMachine:
    """A machine of a network; ``Net.machine`` makes it.

    It has the code and Python of this machine, as an image would, to read; /tmp, /dev/shm and the home folder are its
    own, and empty at each start. Signals and links act on it as on a machine: its processes notice nothing before.

    Args:
        net: it is plugged in there.
        name: of the host.
        number: within the network, from 1.
        address: IPv4 or IPv6.
        volume: folder of ours that it has at ``VOLUME``; None: there is nothing.
    """

    def __init__(self, net: Net, name: str, number: int, address: str, volume: Path | None) -> None:
        self._net = net
        self.name = name
        self.address = address
        self._volume = volume
        self._hardware = f"02:00:00:00:00:{number:02x}"
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0  # of its first process
        self.commands: list[subprocess.Popen[bytes]] = []  # that ``launch`` has started since the machine was

    def start(self) -> None:
        """Turn it on, with nothing on it."""
        assert self._process is None, f"{self.name} runs"
        given = (self.name, self._net.hosts, str(self._volume or ""), *image())
        command = ["unshare", *OWN, "bash", "-c", INIT, "init", *given]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said == b"up\n", f"{self.name} does not start: {said!r}"
        [first] = psutil.Process(self._process.pid).children()
        self.pid = first.pid
        self._net.plug(self.name, self.pid)
        length, *more = ("64", "nodad") if ":" in self.address else ("24",)
        for words in (
            ("link", "set", "lo", "up"),
            ("link", "set", "eth0", "address", self._hardware),  # the same after each start: neighbours remember it
            ("addr", "add", f"{self.address}/{length}", "dev", "eth0", *more),
            ("link", "set", "eth0", "up"),
            ("route", "add", "default", "dev", "eth0"),  # Ray asks which address leads to the world
        ):
            family = ["-6"] if ":" in self.address else []
            self.run("ip", *family, *words)

    @property
    def host(self) -> str:
        """Its address, as in a URL."""
        return f"[{self.address}]" if ":" in self.address else self.address

    @property
    def is_up(self) -> bool:
        """Whether it is turned on."""
        return self._process is not None

    def kill(self) -> None:
        """SIGKILL to all of its processes; the kernel closes their connections."""
        if self._process is None:
            return  # already off
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._net.unplug(self.name)
        for process in (*self.commands, self._process):
            process.wait(END_S)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process = None
        self.commands = []

    def lose_power(self) -> None:
        """All processes end, and no other machine is told: what they send gets no answer."""
        self.cut()
        self.kill()

    def cut(self) -> None:
        """Interrupt its link."""
        self._net.in_switch("ip", "link", "set", "dev", self.name, "down")

    def heal(self) -> None:
        """End the interruption."""
        self._net.in_switch("ip", "link", "set", "dev", self.name, "up")

    def run(self, *command: str, environment: Mapping[str, str] | None = None) -> str:
        """What a command says on its stdout.

        Raises:
            CalledProcessError: it failed.
        """
        done = subprocess.run(
            self._entered(command), check=True, stdout=subprocess.PIPE, text=True, env=plain(environment)
        )
        return done.stdout

    def launch(self, *command: str, environment: Mapping[str, str] | None = None, log: IO[str]) -> psutil.Process:
        """Start a command that goes on until it or the machine ends."""
        started = subprocess.Popen(
            self._entered(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=plain(environment)
        )
        self.commands.append(started)
        entering = psutil.Process(started.pid)
        while not (found := entering.children()):
            assert started.poll() is None, f"{self.name}: {command[0]} has ended"
        return found[0]

    def processes(self) -> list[psutil.Process]:
        """All but the first, by this machine's ids."""
        return psutil.Process(self.pid).children(recursive=True) + [
            process
            for command in self.commands
            if command.poll() is None
            for process in psutil.Process(command.pid).children(recursive=True)
        ]

    def path(self, inside: str) -> Path:
        """A file of the machine, as it is seen from here."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def _entered(self, command: Sequence[str]) -> list[str]:
        return ["nsenter", "-t", str(self.pid), "-n", "-m", "-p", "-u", "-i", "-C", *command]


def plain(environment: Mapping[str, str] | None) -> dict[str, str]:
    """The environment of a process in an image, and what is given beside."""
    usual = {"PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/tmp/home", "LANG": "C.UTF-8"}
    return usual | {"PYTHONPATH": str(ROOT)} | dict(environment or {})


def image() -> list[str]:
    """Folders that an image would hold: the code, Python with its libraries, and the model."""
    folders = (ROOT, sys.prefix, sys.base_prefix, saved_checkpoint())
    return list(dict.fromkeys(str(Path(folder).resolve()) for folder in folders))
