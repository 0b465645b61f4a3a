"""SmolLM2-135M-Instruct, served as ``make serve`` does: README, suggested commands and a button keep their promise."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.inputs.default_model import DEFAULT_MODEL, DEMO
from app.inputs.models import model_path
from app.playground.examples import PERSON
from app.serving.guide import SUGGESTIONS, command, guide
from tests.newcomer.playground.walks import choose, send
from tests.support.browser import Browser
from tests.support.metrics import values
from tests.support.server_process import SpectraServer, running

pytestmark = pytest.mark.cluster

MOST_TOKENS = 600  # of all tests, at about 50 ms each


@pytest.fixture(scope="module")
def server() -> Iterator[SpectraServer]:
    with running(Path(DEMO), ()) as server:
        yield server
        [written] = values(server.http.get("/metrics").text, "vllm:generation_tokens_total")
        assert 0 < written <= MOST_TOKENS


def output_of(script: str) -> str:
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout


def test_the_server_suggests_commands_that_work(server: SpectraServer) -> None:
    url = f"{server.base}/v1"
    assert guide(url, DEFAULT_MODEL) in server.log.read_text()
    assert f"Playground: {server.base}/\n" in server.log.read_text()
    answers = {prompt: output_of(command(url, DEFAULT_MODEL, prompt, fields)) for prompt, fields in SUGGESTIONS}
    assert all(answers.values())
    assert json.loads(answers[PERSON]) == {"name": "Anna Berg", "age": 34, "city": "Oslo"}


def test_the_first_example_of_the_readme_writes_the_same_text_in_fewer_forwards(server: SpectraServer) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (example,) = re.findall(r"```sh\n(ask\(\).*?)\ntime ask ", readme, re.DOTALL)
    (methods,) = re.findall(r"\ntime ask (\S+)\ntime ask (\S+)\n```", readme)
    example = example.replace("http://127.0.0.1:8000", server.base)
    texts, forwards = set(), []
    for method in methods:
        text, n = output_of(f"{example}\nask {method}").removesuffix(" forward passes\n").rsplit(" ", 1)
        texts.add(text)
        forwards.append(int(n))
    assert len(texts) == 1
    assert forwards[1] < forwards[0]


def test_a_greedy_answer_is_the_one_of_hugging_face(server: SpectraServer) -> None:
    folder, prompt = model_path(DEFAULT_MODEL), "The capital of France is"
    ids = AutoTokenizer.from_pretrained(folder)(prompt, return_tensors="pt")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = model.generate(**ids, max_new_tokens=32, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert server.token_ids(model=DEFAULT_MODEL, prompt=prompt, max_tokens=32, temperature=0) == expected.tolist()


def test_a_button_of_the_playground_calls_a_tool(page: Browser) -> None:
    page.open()
    choose(page, "A tool")
    send(page)
    assert page.text("#calls strong") == "get_weather"
    assert json.loads(page.text("#calls pre")) == {"city": "Paris"}
