"""Machines of namespaces: what each has for itself, what links do, and that nothing of them outlives the tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.lacking import lacking
from tests.support.machines.machine import ROOT, Machine
from tests.support.machines.namespaces import NEED, missing, require
from tests.support.machines.net import BRIDGE, Net
from tests.support.machines.redis_machine import RedisMachine, binary
from tests.support.redis_server import wait_until

pytestmark = pytest.mark.matrix

INSTALLED = {path.parts[2] for path in (ROOT, Path(sys.prefix)) if path.parts[1] == "tmp"}  # a checkout may be there

OWNER = """
import sys, time
from tests.support.machines.net import Net

with Net() as net:
    machine = net.machine("short")
    machine.launch("sleep", "1000", log=sys.stderr)
    print(machine.pid, *[process.pid for process in machine.processes()], flush=True)
    time.sleep(1000)
"""


@pytest.fixture(params=[False, True], ids=["v4", "v6"])
def net(request: pytest.FixtureRequest) -> Iterator[Net]:
    require()
    with Net(request.param) as net:
        yield net


def serve_files(machine: Machine, log: Path) -> None:
    with log.open("a") as file:
        machine.launch(sys.executable, "-m", "http.server", "80", "--bind", machine.address, "-d", "/tmp", log=file)


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/file", timeout=1).text == "mine\n"
    except httpx.TransportError:
        return False


def test_machines_share_what_is_installed_and_nothing_else(net: Net) -> None:
    one, two = net.machine("one"), net.machine("two")
    assert [machine.run("hostname").strip() for machine in (one, two)] == ["one", "two"]
    assert one.run("getent", "hosts", "two").split() == [two.address, "two"]
    one.run("sh", "-c", "echo mine > /tmp/file; echo mine > ~/file; echo mine > /dev/shm/file")
    assert set(two.run("ls", "/tmp").split()) == {"home", *INSTALLED}
    assert two.run("ls", "/tmp/home", "/dev/shm").split() == ["/dev/shm:", "/tmp/home:"]
    assert {psutil.Process(two.pid).pid} >= {process.pid for process in two.processes()}
    for place in (ROOT, Path(sys.prefix), Path("/var/tmp"), Path("/root")):
        with pytest.raises(subprocess.CalledProcessError):
            one.run("touch", f"{place}/file")
    assert one.run("ps", "-e", "-o", "comm=").split() == ["bash", "ps"]


def test_a_link_is_cut_and_healed_and_a_killed_machine_comes_back_empty(net: Net, logs: Path) -> None:
    one = net.machine("one")
    one.run("sh", "-c", "echo mine > /tmp/file")
    serve_files(one, logs / "one.txt")
    base = f"http://{one.host}"
    with net.client(base) as client, httpx.Client(base_url=base, trust_env=False) as outside:
        wait_until(lambda: answers(client), "an answer")
        assert not answers(outside)  # this machine is no part of the network
        assert BRIDGE not in psutil.net_if_addrs()
        one.cut()
        assert not answers(client)
        one.heal()
        wait_until(lambda: answers(client), "an answer after the interruption")
        processes = one.processes()
        assert len(processes) == 1
        one.kill()
        assert psutil.wait_procs(processes, timeout=5)[1] == []
        assert not answers(client)
        one.start()
        assert set(one.run("ls", "/tmp").split()) == {"home", *INSTALLED}
        serve_files(one, logs / "one.txt")
        one.run("sh", "-c", "echo mine > /tmp/file")
        wait_until(lambda: answers(client), "an answer of the machine that came back")


def test_a_redis_of_a_machine_speaks_tls_and_keeps_what_its_volume_holds(net: Net, tmp_path: Path) -> None:
    if not binary():
        lacking(f"{NEED} redis-server with TLS (redis-server)")
    redis = RedisMachine(net, tmp_path, tmp_path)
    assert redis.ask("SET", "RAYkey", "value") == "OK"
    redis.machine.kill()
    redis.start()
    assert redis.ask("GET", "RAYkey") == "value"
    for beyond_rights in (("FLUSHALL",), ("GET", "spectra:key")):
        assert redis.ask(*beyond_rights).startswith("NOPERM")
    with pytest.raises(subprocess.CalledProcessError):
        redis.machine.run("redis-cli", "-h", redis.machine.address, "ping")


def test_nothing_outlives_tests_that_are_killed() -> None:
    require()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env=environment)
    assert owner.stdout is not None
    processes = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
    assert len(processes) == 2
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert psutil.wait_procs(processes, timeout=10)[1] == []


def test_where_machines_can_be_made_they_are_and_elsewhere_the_reason_is_said() -> None:
    able = os.geteuid() == 0 and all(shutil.which(command) for command in ("ip", "unshare", "nsenter"))
    assert (missing() == "") is able
    here = f"{Path(__file__)}::test_nothing_outlives_tests_that_are_killed"
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", here]
    without = {name: value for name, value in os.environ.items() if name != "CI"} | {"PATH": "/nowhere"}
    skipped, failed = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=without | ci) for ci in ({}, {"CI": "1"})
    )
    assert "machines as namespaces need ip (iproute2), unshare (util-linux)" in skipped.stdout
    assert "1 skipped" in skipped.stdout
    assert failed.returncode == 1
