"""Log lines: one form for all of a process, safe whatever clients send; floods of lines."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Callable, Hashable

import pytest

from deployments.observability.logs import (
    SERVE,
    LineFormatter,
    LogOptions,
    LogRateLimiter,
    choose_request_id,
    configure,
    current_request_id,
)

Lines = Callable[[str, str], list[str]]


@pytest.fixture
def lines_of(monkeypatch: pytest.MonkeyPatch) -> Lines:
    """The lines that a router's process writes to stderr with a form and a level."""

    def log(form: str, level: str) -> list[str]:
        serve, out = logging.getLogger(SERVE), io.StringIO()
        # Servers of other tests may have configured these.
        for logger in (serve, *map(logging.getLogger, ("ray", "uvicorn", "uvicorn.error"))):
            monkeypatch.setattr(logger, "handlers", [])
            monkeypatch.setattr(logger, "propagate", True)
            logger.setLevel(logging.NOTSET)
        monkeypatch.setattr("sys.stderr", out)
        configure(LogOptions(form, level), "Router")
        token = current_request_id.set("r-1")
        logging.getLogger("deployments.router.lane").info("up %s", "again", extra={"tenant": "a b", "tokens": 3})
        logging.getLogger("uvicorn.error").warning("bad \x1b[31mrequest\nINFO forged")
        logging.getLogger("httpx").info("a library's own business")
        logging.getLogger("app").debug("detail")
        serve.info("of Serve")
        try:
            raise ZeroDivisionError("division by zero")
        except ZeroDivisionError:
            logging.getLogger("engine").exception("failed")
        current_request_id.reset(token)
        return out.getvalue().splitlines()

    return log


def test_every_line_of_json_is_an_object_with_the_request_and_the_fields(lines_of: Lines) -> None:
    lines = [json.loads(line) for line in lines_of("json", "info")]
    assert [(line["name"], line["levelname"]) for line in lines] == [
        ("deployments.router.lane", "INFO"),
        ("uvicorn.error", "WARNING"),
        ("ray.serve", "INFO"),
        ("engine", "ERROR"),
    ]
    assert lines[0]["message"] == "up again"
    assert {(line["component"], line["request_id"]) for line in lines} == {("Router", "r-1")}
    assert (lines[0]["tenant"], lines[0]["tokens"]) == ("a b", 3)
    assert lines[1]["message"] == "bad \x1b[31mrequest\nINFO forged"
    assert "ZeroDivisionError" in lines[3]["exc_text"]


def test_text_has_one_line_per_message_without_control_characters(lines_of: Lines) -> None:
    lines = lines_of("text", "info")
    assert lines[0].endswith(' deployments.router.lane -- up again request_id=r-1 tenant="a b" tokens=3')
    assert lines[1].endswith(r" uvicorn.error -- bad \x1b[31mrequest\x0aINFO forged request_id=r-1")
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    ("level", "messages"), [("debug", ["up", "bad", "detail", "of", "failed"]), ("error", ["failed"])]
)
def test_the_level_holds_for_this_package_and_for_serve(level: str, messages: list[str], lines_of: Lines) -> None:
    assert [json.loads(line)["message"].split()[0] for line in lines_of("json", level)] == messages


def test_a_field_that_json_cannot_represent_is_shown_and_an_absent_one_is_left_out() -> None:
    record = logging.makeLogRecord({"msg": "m", "where": {1}, "nothing": None})
    line = json.loads(LineFormatter("X", True).format(record))
    assert line["where"] == "{1}"
    assert "nothing" not in line


def test_an_id_of_a_client_is_used_if_it_is_fit_for_a_log() -> None:
    for fit in ("trace-7/e", "x" * 128):
        assert choose_request_id(fit) == fit
    for unfit in (None, "", "x" * 129, "two words", "line\nend", "\x1b[31m", "é"):
        drawn = choose_request_id(unfit)
        assert len(drawn) == 32
        assert drawn != choose_request_id(unfit)


async def test_a_flood_of_one_kind_is_cut_and_the_lines_left_out_are_counted() -> None:
    left_out: list[tuple[Hashable, int]] = []
    reported = asyncio.Event()

    def report(kind: Hashable, n: int) -> None:
        left_out.append((kind, n))
        reported.set()

    gate = LogRateLimiter(3, 0.05, report)
    assert [gate.admits("a", 0.001 * i) for i in range(10)] == [True] * 3 + [False] * 7
    assert gate.admits("b", 0.0)
    await reported.wait()
    assert left_out == [("a", 7)]
    assert gate.admits("a", 1.0)
    assert all(gate.admits("b", 1.0 + i) for i in range(5))  # a span has passed between any two
