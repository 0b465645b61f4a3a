"""A newcomer's first hour with the demo server: suggested commands, the README, ``spectra chat``."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from app.demo.guide import QUESTIONS, command, guide
from app.demo.paths import DEMO
from tests.newcomer.terminal import Terminal
from tests.support.server_process import Server, spectra

pytestmark = pytest.mark.cluster

ESCAPE = re.compile(r"\x1b\[\d*m")
STORY = "Write a story about a panda named Anna and a notebook."


def output_of(script: str) -> str:
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout


def test_the_server_suggests_commands_that_work(server: Server) -> None:
    suggested = guide(f"{server.base}/v1", DEMO)
    assert suggested in server.log.read_text()
    assert f"Playground: {server.base}/\n" in server.log.read_text()
    for question in QUESTIONS:
        asks = command(f"{server.base}/v1", DEMO, question)
        assert asks in suggested
        assert output_of(asks).strip()


def test_the_first_example_of_the_readme_writes_the_same_text_in_fewer_forwards(server: Server) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (example,) = re.findall(r"```sh\n(ask\(\).*?)\nask ", readme, re.DOTALL)
    (methods,) = re.findall(r"\nask (\S+)\nask (\S+)\n```", readme)
    example = example.replace("http://127.0.0.1:8000", server.base)
    texts, forwards = set(), []
    for method in methods:
        text, metrics = output_of(f"{example}\nask {method}").split(" {", 1)
        texts.add(text)
        forwards.append(ast.literal_eval("{" + metrics)["speculative_decoding"]["num_spec_steps"])
    assert len(texts) == 1
    assert forwards[1] < forwards[0]


def chat(server: Server, lines: list[str], **variables: str) -> list[str]:
    """Return what the terminal shows after each line that is typed."""
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | variables
    shown = []
    with Terminal([spectra(), "chat", "--url", server.base, "--seed", "3"], environment) as terminal:
        terminal.until("> ")
        for line in lines:
            terminal.type(line + "\r")
            terminal.until("\n")  # the echo
            shown.append(terminal.until("\n> ").removesuffix("\n> "))
    return shown


def test_chat_shows_the_server_s_text_in_the_colours_of_the_sources(server: Server) -> None:
    text, legend, figures = chat(server, ["/method suffix+token-recycling", STORY])[1].rsplit("\n", 2)
    messages: list[Any] = [{"role": "user", "content": STORY}]
    answer = server.openai.chat.completions.create(model="demo", seed=3, messages=messages)
    assert ESCAPE.sub("", text).rstrip("\n") == (answer.choices[0].message.content or "").rstrip("\n")
    assert len({*ESCAPE.findall(text)}) >= 2
    assert {*ESCAPE.findall(text)} == {*ESCAPE.findall(legend)}
    assert {entry.rsplit(" ", 1)[0] for entry in ESCAPE.sub("", legend).split(", ")} >= {"the target's own"}
    assert figures.endswith(", seed 3]")


def test_a_race_in_the_chat_reports_identical_texts(server: Server) -> None:
    [shown] = chat(server, [f"/race autoregressive suffix+token-recycling {STORY}"], NO_COLOR="1")
    assert "\x1b" not in shown
    assert shown.endswith("texts are identical")
    forwards = [int(row.split()[2]) for row in shown.splitlines()[-3:-1]]
    assert forwards[1] < forwards[0]


@pytest.mark.matrix
def test_every_offered_method_writes_the_same_text(server: Server) -> None:
    body: dict[str, Any] = {"model": "demo", "prompt": "1, 2, 3,", "max_tokens": 40, "seed": 3}
    [model] = server.http.get("/v1/models").json()["data"]
    offered = model["speculative"]
    texts = set()
    for method in offered["methods"]:
        speculative = {"method": method, "max_nodes": offered["limit_nodes"]}
        answer = server.http.post("/v1/completions", json=body | {"speculative": speculative})
        assert answer.status_code == 200, answer.text
        texts.add(answer.json()["choices"][0]["text"])
    assert len(texts) == 1
    too_many = {"max_nodes": offered["limit_nodes"] + 1}
    assert server.http.post("/v1/completions", json=body | {"speculative": too_many}).status_code == 400
