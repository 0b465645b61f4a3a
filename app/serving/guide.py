"""What a server of the default model suggests at its start: two commands to try."""

from __future__ import annotations

import json
import os
from typing import Any

from app.playground.examples import PERSON, PERSON_SCHEMA, TIPS

ABOUT = """
SmolLM2-135M-Instruct is a real but very small model: its English is fluent, its facts are often wrong. Try:
"""
SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON_SCHEMA}}
SUGGESTIONS: tuple[tuple[str, dict[str, Any]], ...] = ((TIPS, {}), (PERSON, {"response_format": SCHEMA}))
CURL_PROXIES = ("http_proxy", "all_proxy", "ALL_PROXY")  # those that curl reads for http://
SHOW = 'import json, sys; print(json.load(sys.stdin)["choices"][0]["message"]["content"])'


def guide(url: str, model: str) -> str:
    """The text of the suggestions. ``url`` is the base of the OpenAI API, ``model`` the name that is served."""
    return "\n".join([ABOUT, *(command(url, model, prompt, fields) for prompt, fields in SUGGESTIONS)])


def command(url: str, model: str, prompt: str, fields: dict[str, Any]) -> str:
    """A POSIX shell command that sends ``prompt`` with further ``fields`` of the body and prints the answer alone."""
    body = {"model": model, "temperature": 0, "messages": [{"role": "user", "content": prompt}], **fields}
    quoted = json.dumps(body).replace("'", "'\\''")
    header = "-H 'Content-Type: application/json'"
    direct = (
        "--noproxy '*' " if any(map(os.environ.get, CURL_PROXIES)) else ""
    )  # the user's shell may lack our no_proxy
    return f"  curl {direct}-s {url}/chat/completions {header} \\\n    -d '{quoted}' |\n    python3 -c '{SHOW}'"
