"""Two commands to try, which a server of the default model prints when it is ready."""

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
CURL_PROXIES = ("http_proxy", "all_proxy", "ALL_PROXY")  # that curl reads for http://
SHOW = 'import json, sys; print(json.load(sys.stdin)["choices"][0]["message"]["content"])'


def guide(url: str, model: str) -> str:
    return "\n".join([ABOUT, *(command(url, model, prompt, fields) for prompt, fields in SUGGESTIONS)])


def command(url: str, model: str, prompt: str, fields: dict[str, Any]) -> str:
    """Return a shell command that sends ``prompt``, with more ``fields`` of the body, and prints only the answer."""
    body = {"model": model, "temperature": 0, "messages": [{"role": "user", "content": prompt}], **fields}
    quoted = json.dumps(body).replace("'", "'\\''")
    direct = "--noproxy '*' " if any(map(os.environ.get, CURL_PROXIES)) else ""  # the shell lacks our no_proxy
    header = "-H 'Content-Type: application/json'"
    return f"  curl {direct}-s {url}/chat/completions {header} \\\n    -d '{quoted}' |\n    python3 -c '{SHOW}'"
