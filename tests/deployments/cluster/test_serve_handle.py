"""The application in a driver's own hands: ``serve.run(build_app(ServeConfig(...)))`` and Serve handles, no command.

Two stages, speculators in actors of their own, and Serve's plain settings: the other half of what the command runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from benchmarks.support.server_process import free_port

pytestmark = pytest.mark.matrix

DRIVER = """
import json, sys
import httpx, ray
from ray import serve
from app.builder import build_app
from app.config.serve import ServeConfig
from tests.support.waiting import wait_until

model, port, cache = sys.argv[1], int(sys.argv[2]), sys.argv[3]
ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
serve.start(http_options={"host": "127.0.0.1", "port": port})
args = {
    "model": model, "name": "tiny", "stages": "2", "speculator_actors": 1, "method": "pld", "kv_gib": 0.02,
    "live": ["default"], "retrieval_poll": "0.1", "retrieval_cache": cache,
}
serve.run(build_app(ServeConfig.model_validate(args)), name="spectra")
handle = serve.get_app_handle("spectra")
stream = handle.options(stream=True)
fields = {"prompt": "Snow falls on", "max_tokens": 40, "temperature": 0.8, "seed": 3, "return_token_ids": True}
said = {}
said["whole"] = handle.generate.remote(fields).result()
said["chunks"] = list(stream.generate_stream.remote(fields))
said["chat"] = handle.generate.remote({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}).result()
said["wrong"] = handle.generate.remote({"prompt": "x", "frobnicate": 1}).result()
said["wrong_stream"] = list(stream.generate_stream.remote({"prompt": ""}))
for _ in range(5):
    going = stream.generate_stream.remote(fields | {"max_tokens": 3000, "ignore_eos": True})
    next(going)
    going.cancel()
    handle.generate.remote(fields | {"max_tokens": 3000, "ignore_eos": True}).cancel()
url = f"http://127.0.0.1:{port}/health"
said["health"] = wait_until(lambda: (health := httpx.get(url, timeout=None).json()).get("sessions") == 0 and health)
again = {"prompt": "The quick brown", "max_tokens": 60, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
again["speculative"] = {"method": "rest"}
said["learnt_texts"] = []


def learnt():
    answer = handle.generate.remote(again).result()
    said["learnt_texts"].append(answer["choices"][0]["token_ids"])
    return answer["metrics"]["speculative_decoding"]["by_source"].get("rest", {}).get("accepted", 0) >= 40


said["has_learnt"] = wait_until(learnt)
serve.shutdown()
ray.shutdown()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the driver prints."""
    cache = tmp_path_factory.mktemp("cache")
    command = [sys.executable, "-c", DRIVER, str(tiny_checkpoint), str(free_port()), str(cache)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_handles_answer_as_http_does_and_cancelling_leaves_nothing(
    said: dict[str, Any], tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--max-tokens", "40", "--temperature", "0.8", "--seed", "3", "--raw", "--json"]
    capsys.readouterr()
    main(["generate", "--model", str(tiny_checkpoint), "--prompt", "Snow falls on", *flags])
    wanted = json.loads(capsys.readouterr().out)["token_ids"]
    assert said["whole"]["choices"][0]["token_ids"] == wanted
    assert [token for chunk in said["chunks"] for token in chunk["choices"][0]["token_ids"]] == wanted
    assert said["whole"]["metrics"]["speculative_decoding"]["num_spec_steps"] > 0
    assert said["chat"]["choices"][0]["message"]["role"] == "assistant"
    assert said["wrong"]["error"]["param"] == "frobnicate"
    assert said["wrong_stream"][0]["error"]["param"] == "prompt"
    assert [said["health"][name] for name in ("status", "sessions", "speculator_states")] == ["ok", 0, 0]
    assert said["health"]["free_blocks"] == said["health"]["blocks"]


def test_speculators_in_actors_learn_without_any_store(said: dict[str, Any]) -> None:
    assert len({str(text) for text in said["learnt_texts"]}) == 1
    assert said["has_learnt"]
