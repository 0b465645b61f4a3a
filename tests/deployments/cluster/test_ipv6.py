"""IPv6: a server on ``::1``, and a cluster whose machines have no other addresses than those of version 6.

The cluster runs in a network namespace of the test's own, which needs root (or namespaces of users).
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli import main
from tests.support.server_process import FLAGS, SpectraServer, running

pytestmark = pytest.mark.matrix

NAMESPACE = """
set -e
ip link set lo up
ip link add v0 type veth peer name v1
for n in 1 2; do ip addr add fd77::$n/64 dev v0 nodad; done
ip link set v0 up
ip link set v1 up
exec "$@"
"""

DRIVER = """
import json, sys
import httpx, ray
from ray import serve
from ray.cluster_utils import Cluster
from app.builder import build_app
from app.config.serve import ServeConfig

model, folder = sys.argv[1:3]
head = {"num_cpus": 2, "temp_dir": folder, "include_dashboard": False, "node_ip_address": "fd77::1"}
cluster = Cluster(initialize_head=True, head_node_args=head)
cluster.add_node(num_cpus=2, node_ip_address="fd77::2", resources={"edge": 1})
ray.init(cluster.address, log_to_driver=False, configure_logging=False)
serve.start(http_options={"host": "fd77::1", "port": 8000, "location": "HeadOnly"})
args = {"model": model, "name": "tiny", "stages": 2, "stage_cpus": 1, "stage_placement": "strict_spread",
        "kv_gib": 0.02, "edge_resources": {"edge": 0.1}}
serve.run(build_app(ServeConfig.model_validate(args)), name="spectra")
fields = {"prompt": "Snow falls on", "max_tokens": 60, "temperature": 0.8, "seed": 3, "return_token_ids": True}
answer = httpx.post("http://[fd77::1]:8000/v1/completions", json=fields | {"model": "tiny"}, timeout=240)
said = {"over_http": answer.json()}
target = serve.get_deployment_handle("Target", "spectra")
places = [stage["node"] for stage in target.state.remote().result()["stages"]]
said["nodes"] = sorted(node["NodeManagerAddress"] for node in ray.nodes())
said["places"] = len(set(places))
said["addresses"] = [target.endpoints.remote(node).result().last for node in places]
serve.shutdown()
ray.shutdown()
cluster.shutdown()
print(json.dumps(said))
"""


def test_stages_router_and_ingress_speak_over_ipv6(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="v6-") as folder:
        driver = [sys.executable, "-c", DRIVER, str(tiny_checkpoint), folder]
        apart = ["unshare", "--net", *(["--map-root-user"] if os.geteuid() else []), "bash", "-c", NAMESPACE, "bash"]
        environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        environment.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", None)  # listeners on 127.0.0.1 alone
        done = subprocess.run([*apart, *driver], capture_output=True, text=True, timeout=600, env=environment)
        assert done.returncode == 0, done.stderr
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert said["nodes"] == ["fd77::1", "fd77::2"]
    assert said["places"] == 2
    assert said["addresses"][0].startswith("tcp:[fd77::")  # the last stage's, from the first one's node
    assert said["addresses"][1].startswith("unix:")
    flags = ["--max-tokens", "60", "--temperature", "0.8", "--seed", "3", "--raw", "--json"]
    capsys.readouterr()
    main(["generate", "--model", str(tiny_checkpoint), "--prompt", "Snow falls on", *flags])
    assert said["over_http"]["choices"][0]["token_ids"] == json.loads(capsys.readouterr().out)["token_ids"]


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path) -> Any:
    with running(tiny_checkpoint, (*FLAGS, "--host", "::1")) as started:
        yield started


def test_a_server_on_an_ipv6_interface_says_its_url_and_answers_there_alone(server: SpectraServer) -> None:
    url = f"http://[::1]:{server.port}"
    assert server.first_line == f"Ready: {url}/v1\n"
    answer = httpx.post(f"{url}/v1/completions", json={"model": "tiny", "prompt": "Snow falls", "max_tokens": 5})
    assert answer.json()["usage"]["completion_tokens"] == 5
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{server.port}/health")


def test_load_is_put_on_an_ipv6_url(server: SpectraServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--requests", "4", "--concurrency", "2", "--max-tokens", "8", "--out", str(tmp_path / "run")]
    assert main(["load", "--url", f"http://[::1]:{server.port}", *flags]) == 0
    assert "4" in capsys.readouterr().out
