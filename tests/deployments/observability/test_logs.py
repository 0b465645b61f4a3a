"""Log lines: one form for all of a process, safe whatever clients send; floods of lines."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Hashable

import pytest

from deployments.observability import request_id
from deployments.observability.flood import FloodGate
from deployments.observability.logs import LineFormatter

PROCESS = """
import logging, sys
from deployments.observability import request_id
from deployments.observability.logs import LogOptions, configure

configure(LogOptions("{form}", "{level}"), "Router")
request_id.current.set("r-1")
logging.getLogger("deployments.router.lane").info("up %s", "again", extra={{"tenant": "a b", "tokens": 3}})
logging.getLogger("uvicorn.error").warning("bad \\x1b[31mrequest\\nINFO forged")
logging.getLogger("httpx").info("a library's own business")
logging.getLogger("app").debug("detail")
logging.getLogger("ray.serve").info("of Serve")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("engine").exception("failed")
"""


def lines_of(form: str, level: str = "info") -> list[str]:
    """What a process of its own writes to stderr."""
    code = PROCESS.format(form=form, level=level)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400, check=True)
    return done.stderr.splitlines()


def test_every_line_of_json_is_an_object_with_the_request_and_the_fields() -> None:
    lines = [json.loads(line) for line in lines_of("json")]
    assert [(line["name"], line["levelname"]) for line in lines] == [
        ("deployments.router.lane", "INFO"),
        ("uvicorn.error", "WARNING"),
        ("ray.serve", "INFO"),
        ("engine", "ERROR"),
    ]
    assert lines[0]["message"] == "up again"
    assert {line["component"] for line in lines} == {"Router"}
    assert {line["request_id"] for line in lines} == {"r-1"}
    assert (lines[0]["tenant"], lines[0]["tokens"]) == ("a b", 3)
    assert lines[1]["message"] == "bad \x1b[31mrequest\nINFO forged"
    assert "ZeroDivisionError" in lines[3]["exc_text"]


def test_text_has_one_line_per_message_without_control_characters() -> None:
    lines = lines_of("text")
    assert lines[0].endswith(' deployments.router.lane -- up again request_id=r-1 tenant="a b" tokens=3')
    assert lines[1].endswith(r" uvicorn.error -- bad \x1b[31mrequest\x0aINFO forged request_id=r-1")
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    ("level", "wanted"), [("debug", ["up", "bad", "detail", "of", "failed"]), ("error", ["failed"])]
)
def test_the_level_is_that_of_our_lines_and_of_serve(level: str, wanted: list[str]) -> None:
    assert [json.loads(line)["message"].split()[0] for line in lines_of("json", level)] == wanted


def test_a_field_that_json_does_not_know_is_shown_and_none_is_left_out() -> None:
    record = logging.makeLogRecord({"msg": "m", "where": {1}, "nothing": None})
    line = json.loads(LineFormatter("X", True).format(record))
    assert line["where"] == "{1}"
    assert "nothing" not in line


def test_an_id_of_a_client_is_taken_if_it_is_fit_for_a_log() -> None:
    assert request_id.request_id_of("trace-7/e") == "trace-7/e"
    longest = "x" * 128
    assert request_id.request_id_of(longest) == longest
    for unfit in (None, "", "x" * 129, "two words", "line\nend", "\x1b[31m", "é"):
        drawn = request_id.request_id_of(unfit)
        assert len(drawn) == 32
        assert drawn != request_id.request_id_of(unfit)


async def test_a_flood_is_cut_and_what_was_left_out_is_told_kind_by_kind() -> None:
    told: list[tuple[Hashable, int]] = []
    gate = FloodGate(3, 0.05, lambda kind, n: told.append((kind, n)))
    assert [gate.admits("a", 0.001 * i) for i in range(10)] == [True] * 3 + [False] * 7
    assert gate.admits("b", 0.0)
    while not told:
        await asyncio.sleep(0.01)
    assert told == [("a", 7)]
    assert gate.admits("a", 1.0)
    assert [gate.admits("b", 1.0 + i) for i in range(5)] == [True] * 5  # a span has passed between any two
