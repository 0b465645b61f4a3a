"""What large and crafted bodies cost everyone else: the time between tokens of good streams, with and without them.

A real ``spectra serve`` of two simulated stages of 10 ms streams to 16 clients. For each kind of body one client sends
one a second beside them, then all kinds at once do. Columns: the status that the bodies got and how long the answer
took (p50), then p50, p99 and the largest time between two events of a good stream, and p99 against the phase without
such bodies. An event that the clients themselves were late to see, by a timer of this process, counts less that much.

Two minutes; leave the machine alone meanwhile. The last line of stdout is one JSON document.

    python -m benchmarks.large_bodies [--seconds 8] [--streams 16] [--only KIND ...]
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import itertools
import sys
import time
from collections import Counter

import aiohttp
from tqdm import tqdm

from app.inputs.default_model import DEFAULT_MODEL
from app.reporting.report import as_line, markdown, number
from app.reporting.summaries import Percentiles, percentiles
from benchmarks.support.server_process import ServerProcess

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MEBI = 2**20
WORDS = b"The fox drafts tokens and the river keeps running. "
TICK_S = 0.002
FLAGS = ("--simulate", "flat10", "--stages", "2", "--method", "autoregressive", "--prefix-cache", "false")
JSON = {"Content-Type": "application/json"}


def _many(item: bytes, n_bytes: int) -> bytes:
    """Items of a JSON array of about ``n_bytes``."""
    return b",".join([item] * (n_bytes // (len(item) + 1)))


def _words(n_bytes: int) -> bytes:
    return (WORDS * (n_bytes // len(WORDS) + 1))[:n_bytes]


def bodies(model: str) -> dict[str, tuple[str, bytes]]:
    """Path and body by kind."""
    size = 4 * MEBI - 300
    common = b'{"model":"%s","max_tokens":4,' % model.encode()

    def chat(messages: bytes) -> tuple[str, bytes]:
        return CHAT, common + b'"messages":[' + messages + b"]}"

    def text(prompt: bytes, more: bytes = b"") -> tuple[str, bytes]:
        return TEXT, common + more + b'"prompt":' + prompt + b"}"

    return {
        "a message of 4 MiB": chat(b'{"role":"user","content":"' + _words(size) + b'"}'),
        "100,000 messages": chat(_many(b'{"role":"user","content":"a"}', 3_000_000)),
        "100,000 wrong messages": chat(_many(b'{"role":"user","content":1}', 3_000_000)),
        "4,000 messages": chat(_many(b'{"role":"user","content":"a"}', 120_000)),
        "deep nesting": text(b"[" * 900 + b"]" * 900, b'"top_k":' + b"[" * 900 + b"]" * 900 + b","),
        "a million empty lists": text(b'"a"', b'"top_k":[' + _many(b"[]", size) + b"],"),
        "two million ids": text(b"[" + _many(b"5", size) + b"]"),
        "100,000 prompts": text(b"[" + _many(b"[5]", 400_000) + b"]"),
        "64 prompts of 4,000 ids": text(b"[" + b",".join([b"[" + _many(b"57", 12_000) + b"]"] * 64) + b"]"),
        "a large logit_bias": text(
            b'"a"', b'"logit_bias":{' + b",".join(b'"%d":1' % i for i in range(350_000)) + b"},"
        ),
        "tokenize 160 kB": ("/tokenize", b'{"prompt":"' + _words(160_000) + b'"}'),
        "tokenize 4 MiB": ("/tokenize", b'{"prompt":"' + _words(size) + b'"}'),
        "detokenize 4 MiB": ("/detokenize", b'{"tokens":[' + _many(b"42", size) + b"]}"),
        "detokenize strings": ("/detokenize", b'{"tokens":[' + _many(b'""', size) + b"]}"),
    }


class Beside:
    """Good streams and bodies beside them, on one server.

    Args:
        server: takes requests.
        n_streams: good ones.
        seconds: of each phase.
    """

    def __init__(self, server: ServerProcess, n_streams: int, seconds: float) -> None:
        self._server = server
        self._n_streams = n_streams
        self._seconds = seconds

    async def phase(self, sent: list[tuple[str, bytes]]) -> tuple[Percentiles, Counter[str], Percentiles | None]:
        """Seconds between events, and statuses and seconds of the answers to ``sent``, one a second of each."""
        arrivals: list[list[float]] = []
        late: list[tuple[float, float]] = []
        statuses: Counter[str] = Counter()
        taken: list[float] = []
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(self._server.url, connector=connector, headers=JSON) as session:
            tasks = [asyncio.create_task(self._stream(session, arrivals)) for _ in range(self._n_streams)]
            tasks.append(asyncio.create_task(_timer(late)))
            await asyncio.sleep(1.0)
            began = time.perf_counter()
            senders = [
                asyncio.create_task(self._send(session, path, body, i / len(sent), statuses, taken))
                for i, (path, body) in enumerate(sent)
            ]
            await asyncio.sleep(self._seconds)
            ended = time.perf_counter()
            for task in (*tasks, *senders):
                task.cancel()
            await asyncio.gather(*tasks, *senders, return_exceptions=True)
        found = percentiles(_gaps(arrivals, late, began, ended))
        assert found is not None, "no good stream got a token"
        return found, statuses, percentiles(taken)

    async def _stream(self, session: aiohttp.ClientSession, arrivals: list[list[float]]) -> None:
        fields = {"model": self._server.model, "prompt": "The river", "max_tokens": 400, "ignore_eos": True}
        while True:
            times: list[float] = []
            arrivals.append(times)
            async with session.post(TEXT, json=fields | {"stream": True, "temperature": 0}) as response:
                response.raise_for_status()
                async for line in response.content:
                    if not line.startswith(b"data: {"):
                        continue
                    times.append(time.perf_counter())

    async def _send(
        self,
        session: aiohttp.ClientSession,
        path: str,
        body: bytes,
        offset: float,
        statuses: Counter[str],
        taken: list[float],
    ) -> None:
        async def one() -> None:
            began = time.perf_counter()
            async with session.post(path, data=body) as response:
                await response.read()
                statuses[str(response.status)] += 1
                taken.append(time.perf_counter() - began)

        await asyncio.sleep(offset)
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(one())
                await asyncio.sleep(1.0)


async def _timer(late: list[tuple[float, float]]) -> None:
    """Record when this process was late, and by how many seconds."""
    while True:
        due = time.perf_counter() + TICK_S
        await asyncio.sleep(TICK_S)
        now = time.perf_counter()
        if now - due > TICK_S:
            late.append((now, now - due))


def _gaps(arrivals: list[list[float]], late: list[tuple[float, float]], began: float, ended: float) -> list[float]:
    """Seconds between events of each stream, less what this process was late within."""
    moments = [moment for moment, _ in late]
    found = []
    for times in arrivals:
        for before, after in itertools.pairwise(times):
            if began <= after <= ended:
                own = sum(by for _, by in late[bisect.bisect(moments, before) : bisect.bisect(moments, after)])
                found.append(max(0.0, after - before - own))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each phase")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--only", nargs="+", help="kinds of bodies; by default all")
    arguments = parser.parse_args()
    with ServerProcess(DEFAULT_MODEL, FLAGS) as server:
        print(as_line(asyncio.run(measure(server, arguments.streams, arguments.seconds, arguments.only))))


async def measure(
    server: ServerProcess, n_streams: int, seconds: float, only: list[str] | None
) -> dict[str, dict[str, object]]:
    """Figures by phase; prints them as a table."""
    kinds = {name: body for name, body in bodies(server.model).items() if only is None or name in only}
    beside = Beside(server, n_streams, seconds)
    phases = {"nothing": [], **{name: [body] for name, body in kinds.items()}, "all of them": list(kinds.values())}
    document: dict[str, dict[str, object]] = {}
    rows: list[list[str]] = []
    base = 0.0
    for name, sent in tqdm(phases.items(), file=sys.stderr):
        gaps, statuses, taken = await beside.phase(sent)
        base = base or gaps.p99
        figures = [1000 * seconds for seconds in (gaps.p50, gaps.p99, gaps.max)]
        answer = None if taken is None else 1000 * taken.p50
        status = ", ".join(f"{n} x {code}" for code, n in sorted(statuses.items()))
        rows.append([name, status, number(answer, 0), *(number(ms, 1) for ms in figures), number(gaps.p99 / base)])
        document[name] = {
            "statuses": statuses,
            "answer_ms": answer,
            **dict(zip(("p50_ms", "p99_ms", "max_ms"), figures, strict=True)),
            "p99_ratio": gaps.p99 / base,
        }
    head = ["body, one a second", "answers", "answered ms", "p50 ms", "p99 ms", "largest ms", "p99 ratio"]
    print(markdown(head, rows, 2), flush=True)
    return document


if __name__ == "__main__":
    main()
