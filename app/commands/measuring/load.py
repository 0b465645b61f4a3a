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
from app.load.costs import MOST_GPUS, RunCosts
from app.load.settings import (
    FIXED,
    PATHS,
    POISSON,
    LoadProfile,
    PromptBodies,
    RequestPlan,
    base_of,
    common_fields,
    distinct_of,
    parse_slo,
    trusting,
)
from app.load.traces import RequestTrace, read_trace
from app.offline.flags import check_least
from app.reporting.report import check_writable
from engine.errors import ConfigError

KEY_VARIABLE = "SPECTRA_API_KEY"
DEFAULT_REQUESTS = 100
DEFAULT_MAX_TOKENS = 128
MOST_CLIENTS = 100_000
# The trace sets them; a warm-up would cache its prompts.
NOT_WITH_TRACE = ("prompts", "max_tokens", "repeat_check", "arrivals", "warmup")
DESCRIPTION = """\
Send streamed requests to an OpenAI-compatible server (ours, vLLM's, a hosted one) and report what its clients see:
TTFT (to the first text), TPOT = (E2E - TTFT) / (n - 1), gaps between chunks, tokens per chunk, E2E, tokens/s, errors.
Tokens are counted by the server's usage, never by its events. Answers to the same question must be identical.

  spectra load --url U --concurrency 32 --requests 500     closed loop: 32 clients; each sends its next request when it
                                                           has its answer
  spectra load --url U --rate 5 --duration 60              open loop: arrivals do not wait for answers, and latencies
                                                           count from the intended arrival
  spectra load --url U --rate 5 --slo ttft=0.5,tpot=0.05   goodput: requests/s within all limits
  spectra load --url U --trace mooncake.jsonl              open loop with the arrivals, lengths and shared prefixes of
                                                           a trace: Mooncake's JSONL or BurstGPT's CSV
  spectra load --url U --gpu-price 2.5 --gpus 4            dollars per million tokens; a second pass without speculation
                                                           follows if the server reports drafts
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
    says = "closed loop of C clients (default: 1); with --gpu-price also several, as in 1,8,32: one run each"
    loop.add_argument("--concurrency", type=_counts, metavar="C", help=says)
    loop.add_argument("--rate", type=_above_zero, metavar="R", help="open loop of R requests per second")
    loop.add_argument("--trace", type=Path, metavar="FILE", help="open loop with the requests of a trace")
    says = "seconds of the trace in a second of the run (default: 1)"
    add("--trace-speed", type=_above_zero, metavar="F", help=says)
    add("--arrivals", choices=(POISSON, FIXED), help="of an open loop: random, or evenly spaced (default: poisson)")
    add("--requests", type=int, metavar="N", help=f"send N requests (default: {DEFAULT_REQUESTS}, or a whole trace)")
    add("--duration", type=_above_zero, metavar="S", help="begin requests for S seconds, at most --requests")
    add("--warmup", type=int, metavar="N", help="send N requests first that are not counted")

    add = parser.add_argument_group("requests").add_argument
    says = 'lines {"turns": [..]} (first turns), {"prompt": ..} or {"messages": [..]} (default: 8 built-in prompts)'
    add("--prompts", type=Path, metavar="F.jsonl", help=says)
    says = f"per answer (default: {DEFAULT_MAX_TOKENS}; a trace has its own)"
    add("--max-tokens", type=int, metavar="N", help=says)
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
    add("--gpu-price", type=_above_zero, metavar="X", help="dollars per GPU-hour: adds dollars per million tokens")
    add("--gpus", type=int, metavar="N", help="GPUs of the server, for --gpu-price (default: 1)")
    add("--json", type=Path, metavar="FILE", help="write the document here, indented")
    add("--out", type=Path, metavar="DIR", help="folder for records.jsonl, load.json, tables.md and plots (PNG)")


def run(arguments: argparse.Namespace) -> int:
    from app.load.passes import run_passes

    costs = _read_price(arguments)
    load, plan = _read_load(arguments)
    check_writable(arguments.out, arguments.json)
    counts = arguments.concurrency or [load.concurrency]
    if len(counts) > 1 and costs is None:
        raise ConfigError(
            "--concurrency has several values, which need --gpu-price; give it as well, or give one value"
        )
    problems = run_passes(load, plan, counts, costs, arguments.out, arguments.json)
    if problems:
        print(f"spectra: {'; '.join(problems)}", file=sys.stderr)
    return 1 if problems else 0


def _read_price(arguments: argparse.Namespace) -> RunCosts | None:
    if arguments.gpu_price is None and arguments.gpus is not None:
        raise ConfigError(f"--gpus {arguments.gpus} is for costs: give --gpu-price as well")
    gpus = 1 if arguments.gpus is None else arguments.gpus
    if not 1 <= gpus <= MOST_GPUS:
        raise ConfigError(f"--gpus is {gpus}; it must be 1 to {MOST_GPUS}")
    return None if arguments.gpu_price is None else RunCosts(arguments.gpu_price, gpus)


def _read_load(arguments: argparse.Namespace) -> tuple[LoadProfile, RequestPlan]:
    """Return the load and its requests; asks the server for its model unless a flag names one, and counts words."""
    from app.load.run import model_at
    from app.load.stream import Endpoint
    from app.load.trace_prompts import TracePrompts, count_word_tokens

    ones = dict.fromkeys(("requests", "max_tokens", "max_nodes"), 1)
    check_least(arguments, {**ones, "warmup": 0, "retry": 0, "repeat_check": 0})
    trace = _read_trace(arguments)
    if arguments.arrivals and arguments.rate is None:
        raise ConfigError(f"--arrivals {arguments.arrivals} is for an open loop: give --rate as well")
    unlimited = arguments.requests is None and arguments.duration is None
    requests = len(trace.requests) if trace else DEFAULT_REQUESTS if unlimited else arguments.requests
    prompts: PromptBodies = [] if trace else read_bodies(arguments.prompts, arguments.endpoint)
    key = arguments.api_key or os.environ.get(KEY_VARIABLE)
    base, tls = base_of(arguments.url), trusting(arguments.tls_ca)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    load = LoadProfile(
        Endpoint(base + PATHS[arguments.endpoint], headers, arguments.timeout),
        concurrency=None if arguments.rate is not None or trace else (arguments.concurrency or [1])[0],
        rate=arguments.rate,
        arrivals=arguments.arrivals or POISSON,
        requests=requests,
        duration=arguments.duration,
        warmup=arguments.warmup or 0,
        retries=arguments.retry,
        seed=arguments.seed,
        slo=parse_slo(arguments.slo) if arguments.slo is not None else None,
        trace=trace,
        metrics=f"{base.removesuffix('/v1')}/metrics" if arguments.gpu_price is not None else "",
        tls=tls,
    )
    distinct = distinct_of(arguments.repeat_check, len(prompts), requests)
    common = common_fields(_fields(arguments), arguments.extra)
    if not common.get("model"):
        common["model"] = model_at(base, headers, tls)
    if trace is not None:
        tokenizer = f"{base.removesuffix('/v1')}/tokenize"
        counts = count_word_tokens(tokenizer, arguments.endpoint, str(common["model"]), headers, tls)
        prompts = TracePrompts(trace.requests, arguments.endpoint, counts)
    seed = None if "seed" in common else arguments.seed
    return load, RequestPlan(prompts, common, seed, distinct)


def _read_trace(arguments: argparse.Namespace) -> RequestTrace | None:
    if arguments.trace is None:
        if arguments.trace_speed is not None:
            raise ConfigError(f"--trace-speed {arguments.trace_speed:g} is for a trace: give --trace as well")
        return None
    for name in NOT_WITH_TRACE:
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} goes without --trace, which sets requests and arrivals")
    return read_trace(arguments.trace, arguments.requests, arguments.trace_speed or 1.0, arguments.duration)


def _fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fields of all bodies; what vLLM does not know only if it was asked for."""
    fields: dict[str, Any] = {"model": arguments.model, "temperature": arguments.temperature}
    if arguments.trace is None:
        fields["max_tokens"] = DEFAULT_MAX_TOKENS if arguments.max_tokens is None else arguments.max_tokens
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
    raise argparse.ArgumentTypeError(f"{text!r} must be a finite number above 0")


def _counts(text: str) -> list[int]:
    """Numbers of clients, separated by commas."""
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or not all(1 <= count <= MOST_CLIENTS for count in counts):
        raise argparse.ArgumentTypeError(
            f"it is {text!r}; it must be 1 to {MOST_CLIENTS}, or several such numbers: 1,8,32"
        )
    return counts


def _object(text: str) -> dict[str, Any]:
    with suppress(ValueError):
        if isinstance(value := json.loads(text), dict):
            return value
    raise argparse.ArgumentTypeError(f'{text!r} must be a JSON object, such as {{"top_p": 0.9}}')
