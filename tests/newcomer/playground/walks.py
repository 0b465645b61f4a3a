"""Steps that several walks through the playground share."""

from __future__ import annotations

from typing import Any

from app.inputs.default_model import DEFAULT_MODEL
from app.playground.examples import OF_DEFAULT_MODEL
from tests.support.browser import Browser
from tests.support.server_process import SpectraServer

EXAMPLES = {example["title"]: example for example in OF_DEFAULT_MODEL}
OUTCOME = "document.getElementById('outcome').textContent"
READY = "!document.getElementById('send').disabled && document.querySelector('.chip')"
VERDICT = "document.getElementById('verdict').textContent"


def choose(page: Browser, example: str) -> None:
    """Fill the form with an example."""
    page.wait_for(READY)
    page.run("[...document.querySelectorAll('.chip')].find((c) => c.textContent === arguments[0]).click()", example)


def send(page: Browser) -> str:
    """Send the form; return how the answer ended, as the page says it."""
    page.wait_for(READY)
    page.run("document.getElementById('outcome').textContent = ''")
    page.click("#send")
    return str(page.wait_for(OUTCOME))


def answer_of(server: SpectraServer, title: str, **fields: Any) -> dict[str, Any]:
    """Return the server's answer to an example without a page."""
    example = EXAMPLES[title]
    sampling = {"temperature": example.get("temperature", 0), "seed": example.get("seed", 1), "max_tokens": 256}
    body = {"model": DEFAULT_MODEL, "messages": [{"role": "user", "content": example["prompt"]}]} | sampling
    answer: dict[str, Any] = server.http.post("/v1/chat/completions", json=body | fields).json()
    return answer
