"""What the demo model can do, for a user who has just started it: three commands worth trying."""

from __future__ import annotations

import json

ABLE = """
The demo model is small and knows a small world: sums below 100, small Python functions and edits of them, calls of
tools, JSON from a text, lists and tables are mostly right, edits of texts and answers about a text often. It writes
short stories, poems and letters, and says of all else that it does not know. Try:
"""
QUESTIONS = (
    "There are 4 tables with 8 books on each. How many books are there?",
    "Text: Mary, 73, comes from Paris.\nJSON with the keys name, age, city:",
    "Write a story about a panda named Anna and a notebook.",
)


def guide(url: str, model: str) -> str:
    """The text. ``url`` is the base of the OpenAI API, ``model`` the name that is served."""
    return "\n".join([ABLE, *(command(url, model, question) for question in QUESTIONS)])


def command(url: str, model: str, question: str) -> str:
    """For a POSIX shell: asks and prints the answer alone."""
    body = json.dumps({"model": model, "temperature": 0, "messages": [{"role": "user", "content": question}]})
    quoted = body.replace("'", "'\\''")
    shown = 'import json, sys; print(json.load(sys.stdin)["choices"][0]["message"]["content"])'
    return (
        f"  curl -s {url}/chat/completions -H 'Content-Type: application/json' \\\n    -d '{quoted}' |\n"
        f"    python3 -c '{shown}'"
    )
