"""What a newcomer does: start the server, then try what it and the README suggest."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from app.demo.guide import QUESTIONS, command, guide
from app.demo.paths import DEMO
from tests.support.server_process import Server

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]


def said(script: str) -> str:
    """What a script prints."""
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=600).stdout


def answer_and_metrics(example: str, method: str) -> tuple[str, dict[str, Any]]:
    """What ``ask METHOD`` of an example prints."""
    text, metrics = said(f"{example}\nask {method}").split(" {", 1)
    return text, ast.literal_eval("{" + metrics)


def test_commands_worth_trying_are_told_and_answered(server: Server) -> None:
    url = f"{server.base}/v1"
    told = guide(url, DEMO)
    assert told in server.log.read_text()
    assert f"Playground: {server.base}/\n" in server.log.read_text()
    for question in QUESTIONS:
        asks = command(url, DEMO, question)
        assert asks in told
        assert said(asks).strip()


def test_the_first_example_of_the_readme_writes_the_same_text_in_fewer_forwards(server: Server) -> None:
    readme = (ROOT / "README.md").read_text()
    (example,) = re.findall(r"```sh\n(ask\(\).*?)\nask ", readme, re.DOTALL)
    assert "http://127.0.0.1:8000" in example
    example = example.replace("http://127.0.0.1:8000", server.base)
    (methods,) = re.findall(r"\nask (\S+)\nask (\S+)\n```", readme)
    found = [answer_and_metrics(example, method) for method in methods]
    assert found[0][0] == found[1][0]
    steps = [metrics["speculative_decoding"]["num_spec_steps"] for _, metrics in found]
    (claimed,) = re.findall(r"equal text, (\d+) forwards against (\d+)", readme)
    assert steps == [int(n) for n in claimed]
