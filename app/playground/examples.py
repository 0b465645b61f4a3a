"""Prompts that the page offers; the default model answers its own ones sensibly."""

from __future__ import annotations

from typing import Any

TIPS = "Give me three tips for sleeping better."
BANK_ACCOUNT = "Write a Python class for a bank account with deposit and withdraw methods."
PERSON = "Anna Berg is 34 years old and lives in Oslo. Extract name, age and city as JSON."
PERSON_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
MUSEUM = (
    "The museum opens at nine in the morning. Tickets cost ten euros for adults and five euros for children. Guided "
    "tours start every hour. The cafe on the first floor sells soup and sandwiches."
)
WITH_ERRORS = (
    "The museum open at nine in the morning. Tickets costs ten euros for adults and five euros for childs. Guided "
    "tours starts every hour. The cafe on the first floor sell soup and sandwichs."
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
FUNCTION = """\
def count_items(prices, limit):
    total = 0
    for price in prices:
        if price > limit:
            total += price
    return total"""
PREDICTING = "prediction+suffix+token-recycling"
TOOL: dict[str, Any] = {"title": "A tool", "prompt": "What is the weather in Paris?", "tools": [WEATHER]}
# The page's fields for every example, and its title; other fields have their defaults.
OF_DEFAULT_MODEL: tuple[dict[str, Any], ...] = (
    {"title": "Advice", "prompt": TIPS},
    {
        "title": "A story",
        "prompt": "Write a story about a fox that finds a lantern.",
        "temperature": 0.8,
        "seed": 5,
    },
    {"title": "Code", "prompt": BANK_ACCOUNT},
    {"title": "JSON", "prompt": PERSON, "schema": PERSON_SCHEMA},
    {"title": "A summary", "prompt": f"Summarize in one sentence:\n\n{MUSEUM}"},
    {
        "title": "An edit, predicted",
        "prompt": f"Correct the grammar and spelling of this text:\n\n{WITH_ERRORS}",
        "prediction": WITH_ERRORS,
        "method": PREDICTING,
    },
    TOOL,
)
CODE = "Write a Python function that parses an ISO 8601 date without a library, and tests for it."
GENERIC: tuple[dict[str, Any], ...] = (
    {"title": "Explain", "prompt": "Explain in three short paragraphs how a transformer reads a text."},
    {"title": "Code", "prompt": CODE},
    {"title": "A list", "prompt": "List the planets of the solar system with their radius in km as a Markdown table."},
    {"title": "JSON", "prompt": PERSON, "schema": PERSON_SCHEMA},
    {
        "title": "An edit, predicted",
        "prompt": f"Rename total to result, and answer with the function alone:\n\n{FUNCTION}",
        "prediction": FUNCTION.replace("total", "result"),
        "method": PREDICTING,
    },
    TOOL,
)
