"""``spectra load``: reads flags, runs `app.load`, prints the report."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.inputs.prompts import CHAT, COMPLETIONS, read_bodies
from app.load.settings import (
    FIXED,
    PATHS,
    POISSON,
    LoadProfile,
    RequestPlan,
    base_of,
    common_fields,
    distinct_of,
    parse_slo,
    trusting,
)
from app.offline.flags import check_least
from app.reporting.report import check_writable
from engine.errors import ConfigError

KEY_VARIABLE = "SPECTRA_API_KEY"
DEFAULT_REQUESTS = 100
DESCRIPTION = """\
Send streamed requests to an OpenAI-compatible server (ours, vLLM's, a hosted one) and report what its clients see:
TTFT (to the first text), TPOT = (E2E - TTFT) / (n - 1), gaps between chunks, tokens per chunk, E2E, tokens/s, errors.
Tokens are counted by the server's usage, never by its events. Answers to the same question must be identical.

  spectra load --url U --concurrency 32 --requests 500     closed loop: 32 clients; each sends its next request when it
                                                           has its answer
  spectra load --url U --rate 5 --duration 60              open loop: arrivals do not wait for answers, and latencies
                                                           count from the intended arrival
  spectra load --url U --rate 5 --slo ttft=0.5,tpot=0.05   goodput: requests/s within all limits
  spectra load --url U --retry 8 --repeat-check            sends broken streams again with their seed; they must
                                                           continue where they broke

Request i asks prompt i (again from the first after the last) with seed SEED + i. Tables go to stdout, one JSON document
as the last line; the progress bar goes to stderr.

exit status: 0; 1 if a request failed for good (a 429 counts) or answers to the same question differ; 2 if refused.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("server").add_argument
    add("--url", required=True, metavar="U", help="such as http://127.0.0.1:8000, with or without /v1")
    add("--model", metavar="NAME", help="(default: the first that GET /v1/models lists)")
    add("--endpoint", choices=(CHAT, COMPLETIONS), default=CHAT, help="chat template or plain text (default: chat)")
    add("--api-key", metavar="KEY", help=f"sent as bearer token (default: the variable {KEY_VARIABLE}, if set)")
    add("--tls-ca", metavar="FILE", help="certificates of trusted authorities, PEM (default: the system's)")
    add("--timeout", type=_above_zero, default=600.0, metavar="S", help="seconds per attempt (default: 600)")

    group = parser.add_argument_group("load")
    add, loop = group.add_argument, group.add_mutually_exclusive_group()
    loop.add_argument("--concurrency", type=int, metavar="C", help="closed loop of C clients (default: 1)")
    loop.add_argument("--rate", type=_above_zero, metavar="R", help="open loop of R requests per second")
    add("--arrivals", choices=(POISSON, FIXED), help="of an open loop: random, or evenly spaced (default: poisson)")
    add("--requests", type=int, metavar="N", help=f"send N requests (default: {DEFAULT_REQUESTS})")
    add("--duration", type=_above_zero, metavar="S", help="begin requests for S seconds, at most --requests")
    add("--warmup", type=int, default=0, metavar="N", help="send N requests first that are not counted")

    add = parser.add_argument_group("requests").add_argument
    says = 'lines {"turns": [..]} (first turns), {"prompt": ..} or {"messages": [..]} (default: 8 built-in prompts)'
    add("--prompts", type=Path, metavar="F.jsonl", help=says)
    add("--max-tokens", type=int, default=128, metavar="N", help="per answer (default: 128)")
    add("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default: 0)")
    add("--seed", type=int, default=0, metavar="S", help="of request 0, and of random arrivals (default: 0)")
    add("--ignore-eos", action="store_true", help="always write --max-tokens tokens (ours and vLLM's only)")
    add("--method", metavar="X", help="speculation method (ours only; not sent unless given)")
    add("--max-nodes", type=int, metavar="N", help="drafted nodes per step (ours only)")
    add("--extra", type=_object, default={}, metavar="JSON", help="fields added to every body; null removes a field")

    add = parser.add_argument_group("failures and identity").add_argument
    says = "send a request up to N times again after a broken stream, no connection, 5xx, or 429 with Retry-After"
    add("--retry", type=int, default=0, metavar="N", help=says)
    says = "ask only K different questions (prompt and seed), repeatedly (default K: every prompt, or half of N)"
    add("--repeat-check", type=int, nargs="?", const=0, metavar="K", help=says)

    add = parser.add_argument_group("report").add_argument
    add("--slo", metavar="LIMITS", help="seconds, any of ttft=0.5,tpot=0.05,e2e=10: adds goodput")
    add("--json", type=Path, metavar="FILE", help="write the document here, indented")
    add("--out", type=Path, metavar="DIR", help="folder for records.jsonl, load.json, tables.md and plots (PNG)")


def run(arguments: argparse.Namespace) -> int:
    from app.load.report import notes, publish
    from app.load.run import run as run_load

    load, plan = _plan(arguments)
    check_writable(arguments.out, arguments.json)
    ran = run_load(load, plan)
    found = publish(load, plan.common, ran, arguments.out, arguments.json)
    if found.is_good:
        return 0
    kinds = ", ".join(f"{kind}: {n}" for kind, n in found.errors.items())
    wrong = [f"{found.failed} of {found.requests} requests failed ({kinds})"] if found.failed else []
    wrong += [line for line in notes(found, ran) if line.startswith("DIVERGED")]
    print(f"spectra: {'; '.join(wrong)}", file=sys.stderr)
    return 1


def _plan(arguments: argparse.Namespace) -> tuple[LoadProfile, RequestPlan]:
    """The load and its requests; asks the server for its model unless a flag names one."""
    from app.load.run import model_at
    from app.load.stream import Endpoint

    ones = dict.fromkeys(("concurrency", "requests", "max_tokens", "max_nodes"), 1)
    check_least(arguments, {**ones, "warmup": 0, "retry": 0, "repeat_check": 0})
    if arguments.arrivals and arguments.rate is None:
        raise ConfigError(f"--arrivals {arguments.arrivals} is for an open loop: give --rate as well")
    unlimited = arguments.requests is None and arguments.duration is None
    requests = DEFAULT_REQUESTS if unlimited else arguments.requests
    prompts = read_bodies(arguments.prompts, arguments.endpoint)
    key = arguments.api_key or os.environ.get(KEY_VARIABLE)
    base, tls = base_of(arguments.url), trusting(arguments.tls_ca)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    load = LoadProfile(
        Endpoint(base + PATHS[arguments.endpoint], headers, arguments.timeout),
        concurrency=None if arguments.rate is not None else arguments.concurrency or 1,
        rate=arguments.rate,
        arrivals=arguments.arrivals or POISSON,
        requests=requests,
        duration=arguments.duration,
        warmup=arguments.warmup,
        retries=arguments.retry,
        seed=arguments.seed,
        slo=parse_slo(arguments.slo) if arguments.slo is not None else None,
        tls=tls,
    )
    distinct = distinct_of(arguments.repeat_check, len(prompts), requests)
    common = common_fields(_fields(arguments), arguments.extra)
    if not common.get("model"):
        common["model"] = model_at(base, headers, tls)
    seed = None if "seed" in common else arguments.seed
    return load, RequestPlan(prompts, common, seed, distinct)


def _fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fields of all bodies; what vLLM does not know only if it was asked for."""
    fields: dict[str, Any] = {"model": arguments.model, "max_tokens": arguments.max_tokens}
    fields["temperature"] = arguments.temperature
    if arguments.ignore_eos:
        fields["ignore_eos"] = True
    speculative = {"method": arguments.method, "max_nodes": arguments.max_nodes}
    if given := {name: value for name, value in speculative.items() if value is not None}:
        fields["speculative"] = given
    return fields


def _above_zero(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")


def _object(text: str) -> dict[str, Any]:
    with suppress(ValueError):
        if isinstance(value := json.loads(text), dict):
            return value
    raise argparse.ArgumentTypeError(f'{text!r} must be a JSON object, such as {{"top_p": 0.9}}')
