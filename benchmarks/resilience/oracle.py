"""What a stranger learns of a secret prompt through the prefix cache of a real server.

Starts ``spectra serve`` (or asks the one at --url). A victim sends a prompt of random tokens under a cache salt. An
attacker knows its beginning and tries candidates for each next token, the right one among them: a token counts as
recovered when ``cached_tokens`` of the right candidate alone exceeds the others'. It is told the right token before it
goes on, so one lucky step more is never needed. Then it sends the whole prompt, and one with another first token, and
times both until the first token comes. All of it once under the victim's salt, and once under another.

Exit status 1: anything was recovered under another salt, or under the same salt a token that does not end a KV block.
"""

from __future__ import annotations

import argparse
import random
import time
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import httpx

from app.inputs.default_model import DEFAULT_MODEL
from benchmarks.support.reporting import BenchmarkReport, table
from benchmarks.support.server_process import ServerProcess

SALTS = {"the same salt": "victim", "another salt": "stranger"}
COLUMNS = {
    "attacker": "attacker under",
    "recovered": "tokens recovered",
    "confirmed": "whole prompts confirmed",
    "right_ms": "ms to first token, right prompt",
    "wrong_ms": "ms, wrong prompt",
    "told_apart": "right one faster",
}


@dataclass
class OracleClient:
    """Asks for one token behind a prompt."""

    http: httpx.Client
    model: str

    def ask(self, prompt: list[int], salt: str) -> tuple[int, float]:
        """(tokens found in the cache, seconds to the first token, which is the only one)."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "cache_salt": salt}
        began = time.perf_counter()
        answer = self.http.post("/v1/completions", json=body)
        seconds = time.perf_counter() - began
        answer.raise_for_status()
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"], seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    parser.add_argument("--model", default=DEFAULT_MODEL, help="(default: %(default)s)")
    parser.add_argument("--url", help="of a running server, instead of starting one; needs blocks of --block-size")
    parser.add_argument("--flags", default="--method autoregressive", help="flags of spectra serve")
    parser.add_argument("--block-size", type=int, default=64, help="tokens per KV block (default: 64)")
    parser.add_argument("--blocks", type=int, default=2, help="blocks that are guessed token by token (default: 2)")
    parser.add_argument("--candidates", type=int, default=4, help="per token, the right one included (default: 4)")
    parser.add_argument("--trials", type=int, default=40, help="timed prompts per attacker (default: 40)")
    parser.add_argument("--tokens", type=int, default=448, help="of a timed prompt (default: 448)")


def run(settings: argparse.Namespace) -> BenchmarkReport:
    """Attack and report."""
    started = ServerProcess(settings.model, settings.flags.split()) if settings.url is None else None
    with started or nullcontext(), httpx.Client(base_url=started.url if started else settings.url, timeout=60) as http:
        client = OracleClient(http, http.get("/v1/models").json()["data"][0]["id"])
        rows = [_attack(client, name, salt, settings) for name, salt in SALTS.items()]
    shown = table(COLUMNS, [{**row, "recovered": f"{len(row['recovered'])} of {row['guessed']}"} for row in rows])
    print(shown)
    inside, outside = rows
    wrong = [f"another salt recovered tokens {outside['recovered']}"] if outside["recovered"] else []
    wrong += ["another salt confirmed a prompt"] if outside["confirmed"] else []
    wrong += [
        f"the same salt recovered token {place}, within a block"
        for place in inside["recovered"]
        if (place + 1) % settings.block_size
    ]
    return BenchmarkReport({"attackers": rows, "wrong": wrong}, shown, bool(wrong))


def _attack(client: OracleClient, name: str, salt: str, settings: argparse.Namespace) -> dict[str, Any]:
    chance = random.Random(salt)

    def tokens(n: int) -> list[int]:
        return [chance.randrange(100, 1000) for _ in range(n)]

    size, first = settings.block_size, 2 * settings.block_size
    secret = tokens(first + settings.blocks * size + 1)
    client.ask(secret, "victim")
    recovered = []
    for place in range(first, len(secret) - 1):
        found = {}
        for token in {secret[place], *tokens(settings.candidates - 1)}:
            found[token] = client.ask([*secret[:place], token, *tokens(2)], salt)[0]
        right = found.pop(secret[place])
        if found and right > max(found.values()):
            recovered.append(place)
    confirmed, times = 0, []
    for _ in range(settings.trials):
        prompt = tokens(settings.tokens)
        client.ask(prompt, "victim")
        wrong_prompt = [prompt[0] ^ 1, *prompt[1:]]
        pair = [(wrong_prompt, 1), (prompt, 0)]
        chance.shuffle(pair)
        pair_times = [0.0, 0.0]
        for text, is_wrong in pair:
            n, pair_times[is_wrong] = client.ask(text, salt)
            confirmed += n > 0 and not is_wrong
        times.append(pair_times)
    right_s, wrong_s = zip(*times, strict=True)
    return {
        "attacker": name,
        "guessed": settings.blocks * size,
        "recovered": recovered,
        "confirmed": f"{confirmed} of {settings.trials}" if confirmed else 0,
        "right_ms": _spread(right_s),
        "wrong_ms": _spread(wrong_s),
        "told_apart": f"{sum(right < wrong for right, wrong in times)} of {settings.trials}",
    }


def _spread(seconds: tuple[float, ...]) -> str:
    """Median and quartiles, in milliseconds."""
    low, _, high = quantiles(seconds, n=4)
    return f"{1000 * median(seconds):.1f} ({1000 * low:.1f} to {1000 * high:.1f})"
