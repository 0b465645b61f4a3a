"""Writes into docs/reference/http.md which fields of requests are honoured, accepted or refused.

python -m tools.request_fields            # after a change of a field
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from app.api.requests.declined_fields import DECLINED, DeclinedField
from app.api.requests.responses import ResponsesRequest
from app.api.requests.sampling_fields import HintFields
from app.api.requests.schemas import ChatCompletionRequest, CompletionRequest, TokenizeRequest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "http.md"
BEGIN, END = "<!-- python -m tools.request_fields writes this table -->\n", "<!-- end of the table -->\n"
SCHEMAS = (ChatCompletionRequest, CompletionRequest, ResponsesRequest, TokenizeRequest)
MOST_CHARS = 120  # of a line


def fields_table() -> str:
    """The table in Markdown, with a row for every decision and set of endpoints, or several if they are long."""
    groups: dict[tuple[str, str], list[str]] = {}
    decided: dict[tuple[str, str], list[str]] = {}
    for schema in SCHEMAS:
        for field, decision in _decisions(schema.endpoint):
            decided.setdefault((field, decision), []).append(schema.endpoint)
        for name in schema.model_fields:
            decision = "no effect" if name in HintFields.model_fields else "honoured"
            decided.setdefault((f"`{name}`", decision), []).append(schema.endpoint)
    for (field, decision), endpoints in sorted(decided.items()):
        groups.setdefault((decision, ", ".join(endpoints)), []).append(field)
    rows = [row for (decision, ends), fields in sorted(groups.items()) for row in _rows(decision, ends, fields)]
    return "\n".join(["| decision | endpoints | fields |", "|---|---|---|", *rows, ""])


def _decisions(endpoint: str) -> Iterator[tuple[str, str]]:
    for name, declined in DECLINED[endpoint].items():
        if declined.neutral:
            yield f"`{name}`: {_values(declined)}", "neutral"
        else:
            yield f"`{name}` ({declined.advice})".replace(" (leave it out)", ""), "refused"


def _values(declined: DeclinedField) -> str:
    return " or ".join(f"`{json.dumps(value)}`" for value in declined.neutral)


def _rows(decision: str, endpoints: str, fields: list[str]) -> Iterator[str]:
    begin, line = f"| {decision} | {endpoints} | ", ""
    for field in fields:
        if line and len(begin) + len(line) + len(field) + len(",  |") > MOST_CHARS:
            yield f"{begin}{line} |"
            line = ""
        line += f", {field}" if line else field
    yield f"{begin}{line} |"


def page_with_table(page: str) -> str:
    """Return the page with the current table; raise ValueError if it has no place for one."""
    return replace_table(page, BEGIN, END, fields_table())


def replace_table(page: str, begin: str, end: str, table: str) -> str:
    """Return a page with another table between two marks; raise ValueError if a mark is missing."""
    before, rest = page.split(begin)
    return f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text()))
