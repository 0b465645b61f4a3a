"""What makes a machine of Linux namespaces: the script of its first process, and sockets of ours inside it."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.support.lacking import lacking

NEW_NET = 0x40000000  # CLONE_NEWNET
NEEDED = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "bash": "bash"}  # command -> package
OWN = ("--net", "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--mount-proc")

NEED = "machines as namespaces need"
VOLUME = "/mnt"

# Arguments: the machine's name, the content of /etc/hosts, the folder of its volume or nothing, folders of the image.
# Whatever the image does not hold is the machine's own and empty; the rest of the file system can only be read. What
# comes back from `read` is the end of the process that started the machine, however it ended; then the kernel ends all
# processes of the machine.
INIT = r"""
exec 2>&1
set -e
name=$1 hosts=$2 volume=$3; shift 3
mount --make-rprivate /
if [ "$volume" ]; then mount --bind "$volume" /mnt; fi
for folder; do mount --bind "$folder" "$folder"; mount -o remount,bind,ro "$folder"; done
mount -t tmpfs tmpfs /run
mkdir /run/tmp
mount --rbind /tmp /run/tmp
mount -t tmpfs tmpfs /tmp
for folder; do case $folder in /tmp/*)
  mkdir -p "$folder"
  mount --rbind "/run$folder" "$folder"
esac; done
umount --lazy /run/tmp
mount -t tmpfs tmpfs /dev/shm
mkdir /tmp/home
printf %s "$hosts" > /run/hosts
: > /run/resolv.conf
for file in hosts resolv.conf; do if [ -e /etc/$file ]; then mount --bind /run/$file /etc/$file; fi; done
mount -o remount,bind,ro /
hostname "$name"
echo up
read -r _ || :
"""


def missing() -> str:
    """What keeps machines from being made here; empty where nothing does."""
    lacks = [] if os.geteuid() == 0 else ["root"]
    lacks += [f"{command} ({package})" for command, package in NEEDED.items() if shutil.which(command) is None]
    return ", ".join(lacks)


def require() -> None:
    """End the test where machines cannot be made."""
    if lacks := missing():
        lacking(f"{NEED} {lacks}")


@contextmanager
def inside(pid: int) -> Iterator[None]:
    """Sockets that this thread opens meanwhile are of the network namespace of a process; they remain so."""
    with open("/proc/thread-self/ns/net") as own, open(f"/proc/{pid}/ns/net") as other:
        _enter(other.fileno())
        try:
            yield
        finally:
            _enter(own.fileno())


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, NEW_NET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class TransportOf(httpx.HTTPTransport):
    """HTTP from the network namespace of a process."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Connections are opened here, in the thread of the caller."""
        with inside(self._pid):
            return super().handle_request(request)
