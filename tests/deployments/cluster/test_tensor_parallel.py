"""Two stages of two tensor-parallel ranks: texts are Hugging Face's, also while a rank is killed or stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.deployments.cluster.ray_scripts import run_script, same

pytestmark = pytest.mark.cluster

N_TOKENS = 60
SCRIPT = """
import json, os, signal, sys
from tests.deployments.cluster.ray_nodes import FIELDS, Nodes, named

nodes = Nodes(sys.argv[2], head_cpus=5)
nodes.deploy(sys.argv[1], tensor_parallel=2, method="pld", max_sequences=8, stage_timeout=3)
nodes.until_running()
fields = FIELDS | {"temperature": 0, "max_tokens": N_TOKENS}
greedy = nodes.handle.generate.remote(fields).result()["choices"][0]["token_ids"]
said = {"greedy": greedy, "quiet": nodes.quiet(), "before": nodes.state()}
strikes = {
    "follower killed": (3, signal.SIGKILL),
    "leader killed": (0, signal.SIGKILL),
    "follower stopped": (1, signal.SIGSTOP),
    "leader stopped": (2, signal.SIGSTOP),
}
for n, (name, (victim, number)) in enumerate(strikes.items(), 1):
    pid = nodes.state()["stages"][victim]["pid"]
    said[name] = nodes.disturbed(lambda: os.kill(pid, number), lambda: nodes.state()["replacements"] == n)
known = [one["pid"] for one in nodes.state()["stages"]]
said["others"] = [one.pid for one in named("ray::StageActor") if one.pid not in known]
nodes.close()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tiny_checkpoint: Path) -> dict[str, Any]:
    return run_script(f"N_TOKENS = {N_TOKENS}\n{SCRIPT}", tiny_checkpoint)


def test_the_text_is_hugging_faces(said: dict[str, Any], tiny_checkpoint: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_checkpoint)
    ids = prompt = AutoTokenizer.from_pretrained(tiny_checkpoint)("Snow falls on").input_ids
    for _ in range(N_TOKENS):
        with torch.inference_mode():
            ids = [*ids, int(model(torch.tensor([ids])).logits[0, -1].argmax())]
    assert said["greedy"] == ids[len(prompt) :]


def test_four_processes_are_named_by_stage_and_rank(said: dict[str, Any]) -> None:
    names = [one["name"].partition(" (")[0] for one in said["before"]["stages"]]
    assert names == [f"stage {stage} of 2, rank {rank} of 2" for stage in range(2) for rank in range(2)]


@pytest.mark.parametrize(
    ("name", "victim"), [("follower killed", 3), ("leader killed", 0), ("follower stopped", 1), ("leader stopped", 2)]
)
def test_only_a_lost_rank_is_replaced_and_texts_stay(said: dict[str, Any], name: str, victim: int) -> None:
    names = ["before", "follower killed", "leader killed", "follower stopped", "leader stopped"]
    earlier = said[names[names.index(name) - 1]]
    before = (earlier.get("state") or earlier)["stages"]
    after = said[name]["state"]["stages"]
    assert same(said[name]["answers"], said["quiet"])
    assert [i for i in range(4) if before[i]["pid"] != after[i]["pid"]] == [victim]
    last = said[name]["state"]["last_replacement"]
    assert (list(last["reasons"]), last["error"]) == ([str(victim)], "")
    assert said["others"] == []
