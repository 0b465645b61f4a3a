"""``spectra chat`` at a terminal, and all methods of the server that it asks."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from app.inputs.default_model import DEFAULT_MODEL
from tests.newcomer.terminal import Terminal
from tests.support.server_process import SpectraServer, spectra

pytestmark = pytest.mark.cluster

ESCAPE = re.compile(r"\x1b\[\d*m")
STORY = "Write a story about a fox that finds a lantern."


def chat(server: SpectraServer, lines: list[str], **variables: str) -> list[str]:
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


def test_chat_shows_the_server_s_text_in_the_colours_of_the_sources(server: SpectraServer) -> None:
    text, legend, figures = chat(server, ["/method suffix+token-recycling", STORY])[1].rsplit("\n", 2)
    messages: list[Any] = [{"role": "user", "content": STORY}]
    answer = server.openai.chat.completions.create(model=DEFAULT_MODEL, seed=3, messages=messages)
    assert ESCAPE.sub("", text).rstrip("\n") == (answer.choices[0].message.content or "").rstrip("\n")
    assert len({*ESCAPE.findall(text)}) >= 2
    assert {*ESCAPE.findall(text)} == {*ESCAPE.findall(legend)}
    assert {entry.rsplit(" ", 1)[0] for entry in ESCAPE.sub("", legend).split(", ")} >= {"the target's own"}
    assert figures.endswith(", seed 3]")


def test_a_race_in_the_chat_reports_identical_texts(server: SpectraServer) -> None:
    [shown] = chat(server, [f"/race autoregressive suffix+token-recycling {STORY}"], NO_COLOR="1")
    assert "\x1b" not in shown
    assert shown.endswith("texts are identical")
    forwards = [int(row.split()[2]) for row in shown.splitlines()[-3:-1]]
    assert forwards[1] < forwards[0]


@pytest.mark.matrix
def test_every_offered_method_writes_the_same_text(server: SpectraServer) -> None:
    body: dict[str, Any] = {"model": DEFAULT_MODEL, "prompt": "1, 2, 3,", "max_tokens": 40, "seed": 3}
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
