"""How soon the playground is there, and whether it keeps up with an answer that comes fast.

    python -m benchmarks.processes.playground
    python -m benchmarks.processes.playground --rates 200,1000 --tokens 2000

Needs Chromium and its driver (apt-get install chromium chromium-driver). Starts ``spectra serve``, loads / some times
in a fresh browser each (navigation timing: from the navigation to the end of the load event), and records one traced
answer. A small server then sends the record to the same page at every rate, so that neither model nor speculation
limits it. Columns:

    lag p50, p99, max  what a timer of 10 ms came late on the page's main thread, ms: its backlog
    longest task       of that thread, ms, if it took more than 50; work of other processes prolongs both
    busy               processor time of that thread from the request to the end, s, and its share of the time
    behind             from the last byte that was sent to the page's last figure, ms; trees and bars are drawn by then

The last line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from app.inputs.default_model import DEFAULT_MODEL
from app.playground.options import PlaygroundOptions
from app.playground.playground import Playground
from app.reporting.report import as_line
from app.reporting.summaries import percentiles
from benchmarks.support.browser import Browser, browsing
from benchmarks.support.reporting import table
from benchmarks.support.server_process import HOST, ServerProcess, free_port

COLUMNS = {
    "rate": "tokens/s sent",
    "tokens": "tokens",
    "steps": "steps",
    "lag_p50": "lag p50, ms",
    "lag_p99": "p99",
    "lag_max": "max",
    "longest_task": "longest task, ms",
    "busy_s": "busy, s",
    "busy": "busy, share",
    "behind": "behind, ms",
}
WATCH = """
window.lags = []; window.tasks = [];
let last = performance.now();
setInterval(() => { const now = performance.now(); lags.push(Math.max(0, now - last - 10)); last = now; }, 10);
const note = (list) => tasks.push(...list.getEntries().map((one) => one.duration));
new PerformanceObserver(note).observe({type: "longtask"});
new MutationObserver(() => { window.endedAt ??= performance.timeOrigin + performance.now(); })
  .observe(document.getElementById("outcome"), {childList: true});
"""
ENDED = "document.getElementById('outcome').textContent"

Chunk = tuple[str, int]  # an event as it is sent, and the tokens that it brings


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.processes.playground",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--loads", type=int, default=5, help="of the page (default: 5)")
    parser.add_argument("--rates", default="200,1000", help="tokens per second (default: 200,1000)")
    parser.add_argument("--tokens", type=int, default=2000, help="of the recorded answer (default: 2000)")
    return parser.parse_args(arguments)


def record(url: str, tokens: int) -> list[Chunk]:
    """The events of one traced answer of 64 nodes a step."""
    body = {
        "model": DEFAULT_MODEL,
        "messages": [{"role": "user", "content": "Write a story about a lighthouse keeper who finds a letter."}],
        "temperature": 2.0,
        "seed": 1,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "speculative": {"method": "suffix+token-recycling", "max_nodes": 64, "trace": True},
    }
    chunks: list[Chunk] = []
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=600) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                trace = json.loads(line[6:]).get("metrics", {}).get("speculative_decoding", {}).get("trace", [])
                chunks.append((line + "\n\n", sum(len(step["tokens"]) for step in trace)))
    return chunks


class Feed:
    """Serves the page, and a recorded answer at a rate."""

    def __init__(self, chunks: list[Chunk], models: Any) -> None:
        self.chunks = chunks
        self.models = models
        self.rate = 0.0  # tokens per second
        self.ended_at = 0.0  # seconds since 1970, when the last byte was sent
        self.port = free_port()
        playground = Playground(PlaygroundOptions(is_default_model=True))
        routes = [Route(path, handler, methods=[method]) for method, path, handler in playground.routes]
        routes.append(Route("/v1/models", self._models))
        routes.append(Route("/v1/chat/completions", self._answer, methods=["POST"]))
        self.app = Starlette(routes=routes)

    async def _models(self, request: Request) -> Response:
        return JSONResponse(self.models)

    async def _answer(self, request: Request) -> Response:
        return StreamingResponse(self._sent(), media_type="text/event-stream")

    async def _sent(self) -> AsyncIterator[str]:
        began, sent = time.monotonic(), 0
        for event, tokens in self.chunks:
            sent += tokens
            await asyncio.sleep(max(0.0, began + sent / self.rate - time.monotonic()))
            yield event
        self.ended_at = time.time()
        yield "data: [DONE]\n\n"

    @contextmanager
    def running(self) -> Iterator[str]:
        """Listen in a thread; yields the base address."""
        with socket.socket() as sock:
            sock.bind((HOST, self.port))
            server = uvicorn.Server(uvicorn.Config(self.app, log_level="warning", lifespan="off"))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
            thread.start()
            yield f"http://{HOST}:{self.port}"
            server.should_exit = True
            thread.join()


def load_ms(base: str) -> float:
    """Milliseconds from a navigation of a fresh browser to the end of the load event."""
    with browsing(base) as browser:
        browser.open()
        browser.wait_for("performance.getEntriesByType('navigation')[0].loadEventEnd")
        took: float = browser.run("return performance.getEntriesByType('navigation')[0].loadEventEnd")
    return took


def busy_s(browser: Browser) -> float:
    """Processor seconds that the page's main thread has spent on tasks."""
    metrics = browser.cdp("Performance.getMetrics")["metrics"]
    found: float = next(one["value"] for one in metrics if one["name"] == "TaskDuration")
    return found


def follow(browser: Browser, feed: Feed, rate: float) -> dict[str, Any]:
    """One answer at a rate, and how the page's main thread fared."""
    feed.rate = rate
    browser.open()
    browser.wait_for("!document.getElementById('send').disabled && document.querySelector('.chip')")
    browser.run(WATCH)
    browser.cdp("Performance.enable", timeDomain="threadTicks")
    before, began = busy_s(browser), time.monotonic()
    browser.click("#send")
    browser.wait_for(ENDED, within=600)
    busy, seconds = busy_s(browser) - before, time.monotonic() - began
    lags, tasks, ended = browser.run("return [lags, tasks, endedAt]")
    lag = percentiles(lags)
    assert lag is not None
    return {
        "rate": rate,
        "tokens": sum(tokens for _, tokens in feed.chunks),
        "steps": int(browser.run("return document.getElementById('bars').querySelector('svg').clientWidth / 7")),
        "lag_p50": round(lag.p50, 1),
        "lag_p99": round(lag.p99, 1),
        "lag_max": round(lag.max, 1),
        "longest_task": round(max(tasks)) if tasks else None,
        "busy_s": round(busy, 2),
        "busy": round(busy / seconds, 3),
        "behind": round(ended - feed.ended_at * 1000),
    }


def main(arguments: list[str] | None = None) -> None:
    """Load, record, send, and print a table."""
    asked = parsed(arguments)
    with ServerProcess(DEFAULT_MODEL, []) as server:
        loads = [load_ms(server.url) for _ in range(asked.loads)]
        print("Recording an answer ...", file=sys.stderr, flush=True)
        feed = Feed(record(server.url, asked.tokens), httpx.get(f"{server.url}/v1/models").json())
    with feed.running() as base, browsing(base) as browser:
        rows = [follow(browser, feed, float(rate)) for rate in asked.rates.split(",")]
    print(f"Loaded after {statistics.median(loads):.0f} ms ({', '.join(f'{one:.0f}' for one in loads)}).\n")
    print(table(COLUMNS, rows) + "\n")
    print(as_line({"load_ms": loads, "rates": rows}))


if __name__ == "__main__":
    main()
