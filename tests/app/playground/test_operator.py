"""The page for operators in a real browser: figures are those of /metrics, and processes end while streams go on."""

from __future__ import annotations

import pytest

from benchmarks.support.browser import Browser
from tests.support.page_checks import faint_texts, unnamed_controls
from tests.support.server_process import READY_S, Server

pytestmark = pytest.mark.cluster

STREAMS = "[...document.querySelectorAll('.stream')]"
OF_ALL = f"{STREAMS}.reduce((n, one) => n + Number(one.dataset[arguments[0]]), 0)"


def of_all_streams(page: Browser, figure: str) -> int:
    """The sum of a figure over all streams."""
    return int(page.run(f"return {OF_ALL}", figure))


def until_more_answers(page: Browser, n: int) -> None:
    """Wait until streams have had so many further answers; each is compared with the first of its stream."""
    page.wait_for(f"{OF_ALL} >= arguments[1]", "done", of_all_streams(page, "done") + n)


def kill(page: Browser, part: str, news: str) -> str:
    """Press the button that kills a part, and wait for news of it; what the page then says."""
    page.wait_for(f"document.querySelector('[data-victim={part}]')")
    page.click(f"[data-victim={part}]")
    page.wait_for("document.getElementById('news').textContent.includes(arguments[0])", news, within=READY_S)
    return page.text("#news")


def test_the_router_and_a_stage_are_killed_and_no_text_changes(page: Browser, demo_server: Server) -> None:
    page.open("/operator")
    page.wait_for("document.getElementById('state').textContent === 'ready'")
    page.run("document.getElementById('streams-count').value = '2'")
    page.click("#streams-button")
    page.wait_for(f"{STREAMS}.length && {STREAMS}.every((one) => one.dataset.done > 0)")
    router = demo_server.process_of("ServeReplica:spectra:Router").pid
    said = kill(page, "router", "another router serves")
    assert f"SIGKILL to router, process {router}" in said
    assert demo_server.health()["router_pid"] != router
    until_more_answers(page, 4)
    said = kill(page, "stage-1", "a pipeline was lost")
    assert "SIGKILL to stage 1, process " in said
    page.wait_for("document.getElementById('news').lastChild.textContent.includes('ready again')", within=READY_S)
    until_more_answers(page, 4)
    kill(page, "speculator-0", "SIGKILL to speculator 0")
    until_more_answers(page, 4)
    assert of_all_streams(page, "different") == of_all_streams(page, "failed") == 0
    assert faint_texts(page) == []
    assert unnamed_controls(page) == []
    page.picture("operator")
    page.click("#theme")
    assert page.run("return document.documentElement.dataset.theme") == "dark"
    assert faint_texts(page) == []
    page.run("localStorage.clear()")
    page.click("#streams-button")
    demo_server.settled()
    assert all("/metrics" in line and "503" in line for line in page.logged())  # the router tells them


def test_charts_show_what_the_metrics_say(page: Browser, demo_server: Server) -> None:
    page.open("/operator")
    page.run("document.getElementById('streams-count').value = '4'")
    page.click("#streams-button")
    page.wait_for("[...document.querySelectorAll('.chart')].every((chart) => chart.querySelector('.legend li'))")
    page.wait_for("document.querySelector('.chart .legend').textContent.includes('token-recycling')")
    titles = page.texts(".chart h2")
    assert titles == [
        "Tokens per forward, by source",
        "Tokens per second",
        "Stages busy",
        "Requests",
        "KV cache",
    ]
    names = page.texts(".chart .legend li")
    for name in ("stage 0", "stage 1", "running", "waiting", "generated", "the target itself"):
        assert any(one.startswith(name) for one in names), name
    page.wait_for("document.querySelectorAll('.chart .area').length >= 2")
    page.click("#streams-button")
    demo_server.settled()
