"""Prompts that the page offers: for the demo model those that it can answer."""

from __future__ import annotations

from typing import Any

from app.demo.guide import QUESTIONS

FUNCTION = """\
def count_items(prices, limit):
    total = 0
    for price in prices:
        if price > limit:
            total += price
    return total"""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "send_message",
            "description": "Send a message to a person",
            "parameters": {
                "type": "object",
                "properties": {"recipient": {"type": "string"}, "text": {"type": "string"}},
                "required": ["recipient", "text"],
            },
        },
    }
]
SUM, JSON, STORY = QUESTIONS
TIMES = "My friend Lena comes from Geneva. The tower opens at 2 in the morning. Uma and Lars met at the harbour."
PREDICTING = "prediction+suffix+token-recycling"
DEMO: tuple[dict[str, Any], ...] = (
    {"title": "A story", "prompt": STORY, "temperature": 0.8, "seed": 1},
    {"title": "A poem", "prompt": "Write a short poem about rivers.", "temperature": 0.8, "seed": 7},
    {"title": "A sum", "prompt": SUM},
    {"title": "A function", "prompt": "Program a function: it tells if a number is odd."},
    {"title": "JSON", "prompt": JSON},
    {
        "title": "An edit, predicted",
        "prompt": f"Replace 2 by 31 in this text: {TIMES}",
        "prediction": TIMES,
        "method": PREDICTING,
    },
    {"title": "A tool", "prompt": "Message Yusuf: I will be at the harbour on Monday", "tools": TOOLS},
)
CODE = "Write a Python function that parses an ISO 8601 date without a library, and tests for it."
GENERIC: tuple[dict[str, Any], ...] = (
    {"title": "Explain", "prompt": "Explain in three short paragraphs how a transformer reads a text."},
    {"title": "Code", "prompt": CODE},
    {"title": "A list", "prompt": "List the planets of the solar system with their radius in km as a Markdown table."},
    {
        "title": "An edit, predicted",
        "prompt": f"Rename total to result, and answer with the function alone:\n\n{FUNCTION}",
        "prediction": FUNCTION.replace("total", "result"),
        "method": PREDICTING,
    },
    {"title": "A tool", "prompt": "Write Yusuf that I will be at the harbour on Monday.", "tools": TOOLS},
)


def examples(*, is_demo: bool) -> tuple[dict[str, Any], ...]:
    """Fields of the page by their names, with a title each; those that are not given are at their defaults."""
    return DEMO if is_demo else GENERIC
