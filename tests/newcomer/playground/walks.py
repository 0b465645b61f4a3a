"""Steps that several walks through the playground share."""

from __future__ import annotations

from typing import Any

from benchmarks.support.browser import Browser
from tests.support.server_process import Server

STORY = "Write a story about a panda named Anna and a notebook."
OUTCOME = "document.getElementById('outcome').textContent"
READY = "!document.getElementById('send').disabled && document.querySelector('.chip')"
VERDICT = "document.getElementById('verdict').textContent"


def send(page: Browser, example: str | None = None) -> str:
    """Send the form, with an example chosen; return the page's last word."""
    page.wait_for(READY)
    if example:
        page.run("[...document.querySelectorAll('.chip')].find((c) => c.textContent === arguments[0]).click()", example)
    page.run("document.getElementById('outcome').textContent = ''")
    page.click("#send")
    return str(page.wait_for(OUTCOME))


def answer_of(server: Server, **fields: Any) -> dict[str, Any]:
    """Return the server's answer to the same question without a page."""
    body = {"model": "demo", "messages": [{"role": "user", "content": STORY}], "temperature": 0.8, "seed": 1}
    answer: dict[str, Any] = server.http.post("/v1/chat/completions", json=body | {"max_tokens": 256} | fields).json()
    return answer
