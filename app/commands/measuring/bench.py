"""``spectra bench``: methods side by side on the same prompts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.bench.records import COLD, WARM
from app.commands.measuring.replay import add_replay, check_replay, refuse_replay_flags, replay
from app.inputs.prompts import read_categories
from app.offline.flags import add_model, add_sampling, add_speculation, check_least, checked_config
from engine.errors import ConfigError
from engine.scheduling.drafting import AUTOREGRESSIVE

DESCRIPTION = """\
Run several methods on the same prompts and compare them: tokens per forward of the target (tau), speed-up over
autoregressive decoding, throughput, overall and by category. Every output is compared with that of autoregressive
decoding, token by token. Methods take turns prompt by prompt, so that changes of the machine's speed meet all alike.

Tables go to stdout, with one JSON document as the last line; records.jsonl, tables.md, bench.json and plots (PNG, with
the extra 'plots') go to --out. The same command continues a run that was interrupted.

exit status: 0; 1 if an output differs where it must not (float32, with coupled verification or temperature 0); 2 if
refused.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    says = "prompts, one JSON object per line; prompts without a category get the name of their file as one"
    source.add_argument("--prompts", type=Path, nargs="+", metavar="F.jsonl", help=says)
    add_replay(parser, source)
    add("--limit", type=int, metavar="K", help="only the first K prompts of each file")
    add("--per-category", type=int, metavar="K", help="only the first K prompts of each category")
    add("--sub-categories", action="store_true", help="report each sub_category apart, as SPEED-Bench has them")
    add("--raw", action="store_true", help="no chat template, first turns only")
    says = "such as pld,spectra-core,pld+spectra-core; autoregressive is always added, for comparison"
    add("--methods", type=_methods, required=True, metavar="A,B,..", help=says)
    says = "measure everything R times, with seeds S, S+1, .. (default: 1)"
    add("--repeats", type=int, default=1, metavar="R", help=says)
    state = parser.add_mutually_exclusive_group()
    says = "cold: methods know nothing of other prompts; warm: they keep what they learn (default: cold)"
    state.add_argument("--state", dest="states", type=_states, default=[COLD], metavar="cold,warm", help=says)
    state.add_argument("--warm", dest="states", action="store_const", const=[WARM], help="the same as --state warm")
    says = "passes before a warm one is measured, over the prompts or the --history (default: 0; a replay: 1)"
    add("--warm-passes", type=int, metavar="N", help=says)
    add_model(parser)
    add_sampling(parser)
    says = "0 is greedy; several, such as 0,0.8, are reported apart (default: 0)"
    add("--temperature", dest="temperatures", type=_temperatures, default=[0.0], metavar="T[,T..]", help=says)
    add_speculation(parser)
    add("--out", type=Path, metavar="DIR", help="folder for records, tables and plots; needed without --replay")
    add("--restart", action="store_true", help="discard the records in --out and start again")


def run(arguments: argparse.Namespace) -> int:
    if arguments.warm_passes is None:
        arguments.warm_passes = 0 if arguments.replay is None else 1
    if arguments.replay is not None:
        check_replay(arguments)

        from app.bench.report import publish

        publish(*replay(arguments), arguments.out)
        return 0
    refuse_replay_flags(arguments)
    if arguments.out is None:
        raise ConfigError("--out is missing; give a folder for records, tables and plots")
    for temperature in arguments.temperatures:
        config = checked_config(arguments, temperature, *arguments.methods)
    check_least(arguments, {"repeats": 1, "warm_passes": 0, "per_category": 1})
    questions = read_categories(
        arguments.prompts, arguments.limit, arguments.per_category, finer=arguments.sub_categories
    )

    from app.bench.report import publish
    from app.bench.runs import measure  # torch takes seconds to load, a wrong flag none

    records, facts = measure(arguments, config, questions)
    result = publish(records, facts, arguments.out)
    if result["identical_to_autoregressive"] is not False:
        return 0
    broken = breaks_promise(result, facts["settings"]["dtype"], arguments.verification)
    allowed = "" if broken else ", which their settings allow"
    print(f"spectra: some outputs differ from autoregressive decoding's{allowed}: see 'identical'", file=sys.stderr)
    return 1 if broken else 0


def breaks_promise(result: Mapping[str, Any], dtype: str, verification: str) -> bool:
    """Whether outputs differ where they must not: in float32, and greedy or with coupled verification."""
    promised = [run for run in result["runs"] if verification == "coupled" or run["temperature"] == 0]
    checks = [method["identical_to_autoregressive"] for run in promised for method in run["methods"].values()]
    return dtype == "float32" and False in checks


def _listed(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty entry between its commas")
    return list(dict.fromkeys(names))


def _methods(text: str) -> list[str]:
    return [AUTOREGRESSIVE, *(name for name in _listed(text) if name != AUTOREGRESSIVE)]


def _temperatures(text: str) -> list[float]:
    try:
        return list(dict.fromkeys(map(float, _listed(text))))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be numbers, separated by commas") from None


def _states(text: str) -> list[str]:
    states = _listed(text)
    if not {*states} <= {COLD, WARM}:
        raise argparse.ArgumentTypeError(f"{text!r} must be {COLD}, {WARM}, or both with a comma between them")
    return states
