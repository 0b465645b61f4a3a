"""What the client of ``spectra load`` costs: CPU per chunk, and chunks per second that one process can read.

A server in another process sends chat chunks, evenly paced (so that each comes in a packet of its own) or as fast as it
can. Read by `app.load.client` (aiohttp) and, to compare, by httpx with the same parser. Last line: one JSON document.

    python -m benchmarks.load_client_cost [--streams 32] [--chunks 200]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import uvloop

from app.load.attempt import Attempt
from app.load.client import Client, Endpoint, Watcher, open_session
from app.load.records import Record
from app.serving.environment import free_port

PERIODS_S = (0.01, 0.0)  # between two chunks of a stream; 0: as fast as the server can
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
CHUNK = (
    b'data: {"id":"chatcmpl-1234567890","object":"chat.completion.chunk","created":1,"model":"m","choices":'
    b'[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
END = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":9}}\n\ndata: [DONE]\n\n'
Read = Callable[[str, int], Coroutine[Any, Any, list[Record]]]


def serve(port: int, chunks: int) -> None:
    """The server; the path says how many milliseconds lie between chunks."""
    import uvicorn

    async def app(scope: Any, receive: Any, send: Any) -> None:
        period = float(scope["path"].strip("/") or 0) / 1e3
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(chunks):
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
            await asyncio.sleep(period)
        await send({"type": "http.response.body", "body": END, "more_body": False})

    uvicorn.run(app, port=port, log_level="critical", lifespan="off", ws="none")


async def by_aiohttp(url: str, streams: int) -> list[Record]:
    """As ``spectra load`` reads."""
    async with open_session() as session:
        client = Client(session, Endpoint(url))
        return list(await asyncio.gather(*(client.ask(BODY, Record(i, 0, 0, 0.0)) for i in range(streams))))


async def by_httpx(url: str, streams: int) -> list[Record]:
    """The same parser behind httpx."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=600) as client:

        async def one(index: int) -> Record:
            record = Record(index, 0, 0, 0.0)
            attempt = Attempt(record, Watcher().chunk)
            async with client.stream("POST", url, json=BODY) as response:
                async for piece in response.aiter_bytes():
                    attempt.take(piece, time.monotonic())
            attempt.check_complete()
            return record

        return list(await asyncio.gather(*(one(i) for i in range(streams))))


def measure(read: Read, url: str, streams: int) -> dict[str, float]:
    """CPU and time of reading all streams."""
    cpu, began = time.process_time(), time.monotonic()
    records = uvloop.run(read(url, streams))
    cpu, seconds = time.process_time() - cpu, time.monotonic() - began
    n = sum(len(record.chunks) for record in records)
    return {"chunks": n, "cpu_us_per_chunk": 1e6 * cpu / n, "chunks_per_s": n / seconds, "chunks_per_cpu_s": n / cpu}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--chunks", type=int, default=200, help="per stream")
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.chunks)
        return
    port = free_port()
    command = [sys.executable, "-m", __spec__.name, "--serve", str(port), "--chunks", str(arguments.chunks)]
    server = subprocess.Popen(command)
    try:
        print(json.dumps(compare(port, arguments.streams)))
    finally:
        server.terminate()
        server.wait(30)


def compare(port: int, streams: int) -> dict[str, Any]:
    """Both clients at both paces, the first read being the warm-up."""
    document: dict[str, Any] = {}
    base = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 60
    while not uvloop.run(by_aiohttp(f"{base}/0", 1))[0].ok:
        if time.monotonic() > deadline:
            raise SystemExit("the server did not start")
        time.sleep(0.2)
    for period in PERIODS_S:
        for name, read in (("aiohttp", by_aiohttp), ("httpx", by_httpx)):
            found = measure(read, f"{base}/{1e3 * period:g}", streams)
            document[f"{name}, {'paced' if period else 'as fast as it can'}"] = found
            print(f"{name}, {1e3 * period:g} ms between chunks: {found['cpu_us_per_chunk']:.0f} us of CPU per chunk, "
                  f"{found['chunks_per_s']:.0f} chunks/s", flush=True)  # fmt: skip
    return document


if __name__ == "__main__":
    main()
