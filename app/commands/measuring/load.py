"""``spectra load``: flags in, report out; what happens between is `app.load`'s."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.inputs.prompts import CHAT, COMPLETIONS, read_bodies
from app.load.settings import FIXED, POISSON
from engine.errors import ConfigError

KEY_VARIABLES = ("SPECTRA_API_KEY", "SPECTRA_LOAD_API_KEY")
DEFAULT_REQUESTS = 100
DESCRIPTION = """\
Send streamed requests to any OpenAI-compatible server (ours, vLLM's, a hosted one) and report what its clients see:
TTFT (to the first text), TPOT = (E2E - TTFT) / (n - 1), gaps between chunks, tokens per chunk, E2E, tokens/s, errors.
Tokens are counted by the server's usage, never by its events. Answers to the same question must be the same text.

  spectra load --url U --concurrency 32 --requests 500     closed loop: 32 clients; each asks when it has its answer
  spectra load --url U --rate 5 --duration 60              open loop: arrivals do not wait for answers, and latencies
                                                           count from the intended arrival
  spectra load --url U --rate 5 --slo ttft=0.5,tpot=0.05   goodput: requests/s that met all of the objective
  spectra load --url U --retry 8 --repeat-check            broken streams are sent again with their seed and must
                                                           go on where they broke; the same question, the same text

Request i asks prompt i (from the start again after the last) with seed SEED + i. Tables go to stdout, one JSON document
as the last line; the bar goes to stderr.

exit status: 0; 1 if a request failed for good (a 429 counts) or answers to the same question differ; 2 if refused.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Make ``parser`` that of ``spectra load``."""
    _add_server(parser.add_argument_group("server"))
    _add_loop(parser.add_argument_group("load"))
    _add_request(parser.add_argument_group("requests"))
    _add_failure(parser.add_argument_group("failures and identity"))
    _add_output(parser.add_argument_group("report"))


def _add_server(group: Any) -> None:
    group.add_argument("--url", required=True, metavar="U", help="such as http://127.0.0.1:8000, with or without /v1")
    group.add_argument("--model", metavar="NAME", help="(default: the first that GET /v1/models lists)")
    group.add_argument(
        "--endpoint", choices=(CHAT, COMPLETIONS), default=CHAT, help="chat template or plain text (default: chat)"
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"sent as bearer token (default: the variable {' or '.join(KEY_VARIABLES)}, if set)",
    )
    group.add_argument(
        "--tls-ca", metavar="FILE", help="authorities of https servers that are trusted, PEM (default: the system's)"
    )
    group.add_argument(
        "--timeout", type=_above_zero, default=600.0, metavar="S", help="seconds per attempt (default: 600)"
    )


def _add_loop(group: Any) -> None:
    loop = group.add_mutually_exclusive_group()
    loop.add_argument("--concurrency", type=_count, metavar="C", help="closed loop of C clients (default: 1)")
    loop.add_argument("--rate", type=_above_zero, metavar="R", help="open loop of R requests per second")
    group.add_argument(
        "--arrivals", choices=(POISSON, FIXED), help="of an open loop: at random, seeded, or evenly (default: poisson)"
    )
    group.add_argument("--requests", type=_count, metavar="N", help=f"to send (default: {DEFAULT_REQUESTS})")
    group.add_argument(
        "--duration",
        type=_above_zero,
        metavar="S",
        help="begin requests for S seconds; with --requests: whichever is over first",
    )
    group.add_argument("--warmup", type=_count_or_none, default=0, metavar="N", help="requests before, not counted")


def _add_request(group: Any) -> None:
    group.add_argument(
        "--prompts",
        type=Path,
        metavar="F.jsonl",
        help='lines {"turns": [..]} (first turns), {"prompt": ..} or {"messages": [..]} (default: 8 built-in prompts)',
    )
    group.add_argument("--max-tokens", type=_count, default=128, metavar="N", help="per answer (default: 128)")
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default: 0)")
    group.add_argument("--seed", type=int, default=0, metavar="S", help="of request 0, and of arrivals (default: 0)")
    group.add_argument("--ignore-eos", action="store_true", help="always --max-tokens tokens (ours and vLLM's only)")
    group.add_argument("--method", metavar="X", help="speculation method (ours only; not sent unless given)")
    group.add_argument("--max-nodes", type=_count, metavar="N", help="drafted nodes per step (ours only)")
    group.add_argument(
        "--extra", type=_object, default={}, metavar="JSON", help="merged into every body; null takes a field away"
    )


def _add_failure(group: Any) -> None:
    group.add_argument(
        "--retry",
        type=_count_or_none,
        default=0,
        metavar="N",
        help="send a request again, up to N times, after a broken stream, no connection, 5xx, or 429 with Retry-After",
    )
    group.add_argument(
        "--repeat-check",
        type=_count,
        nargs="?",
        const=0,
        metavar="K",
        help="ask only K different questions (prompt and seed), over and over (default K: every prompt, or half of N)",
    )


def _add_output(group: Any) -> None:
    group.add_argument("--slo", metavar="LIMITS", help="seconds, any of ttft=0.5,tpot=0.05,e2e=10: adds goodput")
    group.add_argument("--json", type=Path, metavar="FILE", help="the document, indented")
    group.add_argument("--out", type=Path, metavar="DIR", help="records.jsonl, load.json, tables.md and plots (PNG)")


def run(arguments: argparse.Namespace) -> int:
    """Load, report."""
    from app.load.figures import figures
    from app.load.report import document, notes, publish, tables
    from app.load.run import run as run_load
    from app.reporting.report import as_line, check_writable

    load, plan = _told(arguments)
    check_writable(arguments.out, arguments.json)
    ran = run_load(load, plan)
    found = figures(ran.records, load.slo, plan.common.get("temperature") == 0)
    whole = document(load, plan.common, found, ran)
    shown = tables(load, found, ran)
    publish(whole, shown, ran.records, load.slo, arguments.out, arguments.json)
    print(shown, as_line(whole), sep="\n\n", flush=True)
    if not found.is_good:
        print(f"spectra: {'; '.join(_wrong(found, notes(found, ran)))}", file=sys.stderr)
    return 0 if found.is_good else 1


def _wrong(found: Any, said: list[str]) -> list[str]:
    kinds = ", ".join(f"{kind}: {n}" for kind, n in found.errors.items())
    failed = [f"{found.failed} of {found.requests} requests failed ({kinds})"] if found.failed else []
    return [*failed, *(line for line in said if line.startswith("DIVERGED"))]


def _told(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Settings and plan of the flags; asks the server for its model only if it must."""
    from app.load.run import model_at
    from app.load.settings import LoadProfile, RequestPlan, base_of, common_fields, distinct_of, parse_slo, trusting

    if arguments.arrivals and arguments.rate is None:
        raise ConfigError(f"--arrivals {arguments.arrivals} is for an open loop: give --rate as well")
    unlimited = arguments.requests is None and arguments.duration is None
    requests = DEFAULT_REQUESTS if unlimited else arguments.requests
    prompts = read_bodies(arguments.prompts, arguments.endpoint)
    key = arguments.api_key or next(filter(None, map(os.environ.get, KEY_VARIABLES)), None)
    load = LoadProfile(
        base=base_of(arguments.url),
        endpoint=arguments.endpoint,
        headers={"Authorization": f"Bearer {key}"} if key else {},
        concurrency=None if arguments.rate is not None else arguments.concurrency or 1,
        rate=arguments.rate,
        arrivals=arguments.arrivals or POISSON,
        requests=requests,
        duration=arguments.duration,
        warmup=arguments.warmup,
        retries=arguments.retry,
        timeout=arguments.timeout,
        seed=arguments.seed,
        slo=parse_slo(arguments.slo) if arguments.slo is not None else None,
        tls=trusting(arguments.tls_ca),
    )
    distinct = distinct_of(arguments.repeat_check, len(prompts), requests)
    common = common_fields(_fields(arguments), arguments.extra)
    if not common.get("model"):
        common["model"] = model_at(load.base, load.headers, load.tls)
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


def _number(text: str, kind: Callable[[str], Any], allowed: Callable[[Any], bool], what: str) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not allowed(value):
        raise argparse.ArgumentTypeError(f"{text!r} must be {what}")
    return value


def _count(text: str) -> int:
    return int(_number(text, int, lambda n: n >= 1, "a whole number above 0"))


def _count_or_none(text: str) -> int:
    return int(_number(text, int, lambda n: n >= 0, "a whole number, 0 or more"))


def _above_zero(text: str) -> float:
    return float(_number(text, float, lambda x: x > 0 and math.isfinite(x), "a number above 0"))


def _object(text: str) -> dict[str, Any]:
    value = _number(text, json.loads, lambda value: isinstance(value, dict), 'a JSON object, such as {"top_p": 0.9}')
    return dict(value)
