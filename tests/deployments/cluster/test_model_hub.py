"""A model on a hub, and nodes that share no file system: each process fetches what it reads, and all read one commit.

Every node has a Hugging Face home and a name at the hub of its own; the driver is a node without work.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.cli import main
from engine.model.loader import layer_files
from engine.model.ranges import LayerRange, split_layers
from tests.support.model_hub import ModelHub, model_hub

pytestmark = pytest.mark.matrix

NAME = "acme/tiny"
DRIVER = """
import json, os, signal, sys, time
import ray
from ray import serve
from ray.cluster_utils import Cluster
from app.builder import build_app
from app.config.serve import ServeConfig

folder = sys.argv[1]


def node(name):
    return {"env_vars": {"HF_HOME": f"{folder}/{name}", "HF_HUB_USER_AGENT_ORIGIN": name}}


head = {"num_cpus": 0, "temp_dir": folder, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head | node("head"))
cluster.add_node(num_cpus=1, resources={"edge": 1}, **node("edge"))
named = {cluster.add_node(num_cpus=2, **node(name)).node_id: name for name in ("one", "two")}
ray.init(cluster.address, log_to_driver=False, configure_logging=False)
serve.start(proxy_location="Disabled")
args = {"model": "acme/tiny", "stages": 2, "layer_split": "2,2", "stage_cpus": 1,
        "stage_placement": "strict_spread", "kv_gib": 0.02,
        "edge_resources": {"edge": 0.01}, "draft_model": "acme/draft", "method": "draft-model"}
try:
    serve.run(build_app(ServeConfig.model_validate(args)), name="spectra")
except RuntimeError:
    print(serve.status().applications["spectra"], file=sys.stderr)
    raise
handle = serve.get_app_handle("spectra")
target = serve.get_deployment_handle("Target", "spectra")
fields = {"prompt": "Snow falls on", "max_tokens": 60, "temperature": 0, "return_token_ids": True, "ignore_eos": True}


def stages():
    return target.state.remote().result()["stages"]


said = {"quiet": handle.generate.remote(fields).result(), "stages": [named[stage["node"]] for stage in stages()]}
print("served", flush=True)
sys.stdin.readline()  # main of both repositories has moved, and each node forgets what it has fetched
lost = stages()[1]
os.kill(lost["pid"], signal.SIGKILL)
said["after"] = handle.generate.remote(fields).result()
said["is_replaced"] = stages()[1]["pid"] != lost["pid"]
serve.shutdown()
ray.shutdown()
cluster.shutdown()
print(json.dumps(said))
"""


def sharded(checkpoint: Path, folder: Path, scale: float = 1.0) -> Path:
    """The checkpoint in many weight files; another ``scale`` of its head makes it another model."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(scale)
    model.save_pretrained(folder, max_shard_size="20KB")
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def hub() -> Iterator[ModelHub]:
    with model_hub() as started:
        yield started


@pytest.fixture(scope="module")
def said(hub: ModelHub, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the driver says, and the commits of target and drafter at its start."""
    old = sharded(tiny_checkpoint, tmp_path_factory.mktemp("old"))
    new = sharded(tiny_checkpoint, tmp_path_factory.mktemp("new"), scale=-1.0)
    commits = {name: hub.publish(name, old) for name in (NAME, "acme/draft")}
    with tempfile.TemporaryDirectory(prefix="mh-") as folder:
        environment = os.environ | {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": f"{folder}/driver",
            "HF_HUB_USER_AGENT_ORIGIN": "driver",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        command = [sys.executable, "-c", DRIVER, folder]
        log = Path(folder) / "driver.err"
        with (
            log.open("w") as errors,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            ) as driver,
        ):
            assert driver.stdout is not None
            first = driver.stdout.readline()
            assert first == "served\n", log.read_text()
            fetched = {client: dict(files) for client, files in hub.fetched.items()}
            for name in commits:
                hub.publish(name, new)
            for name in ("one", "two"):
                for ref in Path(folder, name).rglob("refs/main"):
                    ref.unlink()
            rest, _ = driver.communicate("go on\n", timeout=600)
        assert driver.returncode == 0, log.read_text()
        yield json.loads(rest.splitlines()[-1]) | {"commits": commits, "fetched": fetched, "old": str(old)}


def weights(said: dict[str, Any], client: str, of: str = NAME) -> set[str]:
    names = (name.partition("/") for name in said["fetched"].get(client, {}))
    return {name for commit, _, name in names if commit == said["commits"][of] and name.endswith(".safetensors")}


def test_ingress_router_and_builder_fetch_no_weights_of_the_target(said: dict[str, Any]) -> None:
    assert said["fetched"]["driver"].keys() & {f"{said['commits'][NAME]}/tokenizer.json"}
    assert said["fetched"]["edge"].keys() & {f"{said['commits'][NAME]}/tokenizer.json"}
    assert weights(said, "driver") == weights(said, "edge") == weights(said, "head") == set()


def test_a_drafter_is_fetched_where_it_drafts_alone(said: dict[str, Any]) -> None:
    assert weights(said, "driver", "acme/draft") == set()
    assert weights(said, "one", "acme/draft") | weights(said, "two", "acme/draft") == set()
    assert len(weights(said, "edge", "acme/draft")) > 3


def test_each_stage_fetches_the_files_of_its_layers_into_its_own_home(said: dict[str, Any]) -> None:
    old = Path(said["old"])
    wanted = [layer_files(old, layers, embeds=False) for layers in split_layers(n_layers(old), 2)]
    assert [weights(said, client) for client in said["stages"]] == wanted
    assert wanted[0] != wanted[1]
    assert all(len(files) < len(list(old.glob("*.safetensors"))) for files in wanted)


def n_layers(checkpoint: Path) -> int:
    layers: int = json.loads((checkpoint / "config.json").read_text())["num_hidden_layers"]
    return layers


def test_a_stage_that_is_replaced_reads_the_commit_of_the_start(
    said: dict[str, Any], hub: ModelHub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said["is_replaced"]
    texts = [said[when]["choices"][0]["token_ids"] for when in ("quiet", "after")]
    assert texts[0] == texts[1]
    flags = ["--max-tokens", "60", "--temperature", "0", "--raw", "--json"]
    capsys.readouterr()
    main(["generate", "--model", said["old"], "--prompt", "Snow falls on", *flags])
    wanted = json.loads(capsys.readouterr().out)["token_ids"]
    assert texts[0][: len(wanted)] == wanted
    newest = hub.branches[NAME]
    assert newest != said["commits"][NAME]
    assert [hub.files_of(client, newest) for client in ("driver", "edge", "one", "two")] == [set()] * 4


def test_a_range_of_layers_needs_the_files_that_its_tensors_are_in(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = sharded(tiny_checkpoint, tmp_path)
    n = n_layers(folder)
    whole = layer_files(folder, LayerRange(0, n, n), embeds=False)
    assert whole == {file.name for file in folder.glob("*.safetensors")}
    parts = [layer_files(folder, LayerRange(i, i + 1, n), embeds=False) for i in range(n)]
    assert set.union(*parts) == whole
    assert layer_files(tiny_checkpoint, LayerRange(0, 1, n), embeds=False) == {"model.safetensors"}
