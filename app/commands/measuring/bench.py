"""``spectra bench``: methods side by side on the same prompts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.bench.records import COLD, WARM
from app.commands.measuring.replay_flags import add_replay, check_replay, refuse_replay_flags
from app.config.serve import ServeConfig
from app.inputs.prompts import read_categories
from app.offline.flags import add_model, add_sampling, add_speculation, check_least, checked_config
from engine.errors import ConfigError

DESCRIPTION = """\
Run several methods on the same prompts and compare them: tokens per forward of the target (tau), speed-up over
autoregressive decoding, throughput, over all and by category. Every output is held against autoregressive decoding's,
token by token. Methods take turns prompt by prompt, so that a machine that slows down slows them all.

Tables go to stdout, with one JSON document as the last line; records.jsonl, tables.md, bench.json and plots (PNG) go to
--out. A run that was interrupted goes on where it stopped when the same command is given again.

exit status: 0; 1 if an output differs although it must not (float32; coupled verification or greedy); 2 if refused.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Make ``parser`` that of ``spectra bench``."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--prompts",
        type=Path,
        nargs="+",
        metavar="F.jsonl",
        help="prompts, one JSON object per line; a file's name is the category of its prompts without one",
    )
    add_replay(parser, source)
    parser.add_argument("--limit", type=int, metavar="K", help="only the first K prompts of each file")
    parser.add_argument(
        "--sub-categories", action="store_true", help="report each sub_category of prompts, as SPEED-Bench has them"
    )
    parser.add_argument("--per-category", type=int, metavar="K", help="only the first K prompts of each category")
    parser.add_argument("--raw", action="store_true", help="no chat template, first turns only")
    _add_methods(parser)
    add_model(parser)
    add_sampling(parser)
    parser.add_argument(
        "--temperature",
        dest="temperatures",
        type=_temperatures,
        default=[0.0],
        metavar="T[,T..]",
        help="0 is greedy; several are measured one by one and reported apart, e.g. 0,0.8 (default: 0)",
    )
    add_speculation(parser)
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="records, tables and plots go here; needed unless --replay"
    )
    parser.add_argument("--restart", action="store_true", help="forget the records in --out and begin anew")


def _add_methods(parser: argparse.ArgumentParser) -> None:
    """Flags that say what is compared, and how often."""
    parser.add_argument(
        "--methods",
        type=_methods,
        required=True,
        metavar="A,B,..",
        help="e.g. pld,spectra-core,pld+spectra-core; autoregressive, which the others are held against, is added",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=1,
        metavar="R",
        help="measure everything R times, sampled texts with seeds S, S+1, ..; speed-ups are taken within a repeat "
        "(default: 1)",
    )
    state = parser.add_mutually_exclusive_group()
    state.add_argument(
        "--state",
        dest="states",
        type=_states,
        default=[COLD],
        metavar="cold,warm",
        help="cold: speculators begin every prompt knowing nothing of the others; warm: they keep what they learnt; "
        "with both, both are measured and reported apart (default: cold)",
    )
    state.add_argument("--warm", dest="states", action="store_const", const=[WARM], help="the same as --state warm")
    parser.add_argument(
        "--warm-passes",
        type=int,
        metavar="N",
        help="passes over the prompts (a replay: over the history) before a warm one is measured; over the prompts, "
        "with 1 or more, speculators have met the very answers, with 0 only earlier ones (default: 0; a replay: 1)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure what is not measured yet; print tables and the document."""
    if arguments.warm_passes is None:
        arguments.warm_passes = 0 if arguments.replay is None else 1

    if arguments.replay is not None:
        check_replay(arguments)

        from app.commands.measuring.replay import replay
        from app.reporting.report import as_line

        print(as_line(replay(arguments)), flush=True)
        return 0
    refuse_replay_flags(arguments)
    if arguments.out is None:
        raise ConfigError("--out DIR is needed: records, tables and plots go there")
    config = _check(arguments)
    questions = read_categories(
        arguments.prompts, arguments.limit, arguments.per_category, finer=arguments.sub_categories
    )

    from app.bench.measure import measure  # torch takes seconds to load, a wrong flag none
    from app.bench.report import publish
    from app.reporting.report import as_line

    records, facts = measure(arguments, config, questions)
    result = publish(records, facts, arguments.out)
    print(as_line(result), flush=True)
    if result["identical_to_autoregressive"] is not False:
        return 0
    broken = breaks_promise(result, facts["settings"]["dtype"], arguments.verification)
    allowed = "" if broken else ", which their settings allow"
    print(f"spectra: some outputs differ from autoregressive decoding's{allowed}: see 'identical'", file=sys.stderr)
    return 1 if broken else 0


def _check(arguments: argparse.Namespace) -> ServeConfig:
    """Return the configuration; raise SpectraError if a flag's value is wrong."""
    for temperature in arguments.temperatures:
        config = checked_config(arguments, temperature, *arguments.methods)
    check_least(arguments, {"repeats": 1, "warm_passes": 0, "per_category": 1})
    return config


def breaks_promise(result: Mapping[str, Any], dtype: str, verification: str) -> bool:
    """Whether outputs differ where they must not: in float32, and greedy or with coupled verification."""
    promised = [run for run in result["runs"] if verification == "coupled" or run["temperature"] == 0]
    checks = [method["identical_to_autoregressive"] for run in promised for method in run["methods"].values()]
    return dtype == "float32" and False in checks


def _listed(text: str, what: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty {what}")
    return list(dict.fromkeys(names))


def _methods(text: str) -> list[str]:
    reference = "autoregressive"
    return [reference, *(name for name in _listed(text, "method") if name != reference)]


def _temperatures(text: str) -> list[float]:
    try:
        return list(dict.fromkeys(float(value) for value in _listed(text, "temperature")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers") from None


def _states(text: str) -> list[str]:
    states = _listed(text, "state")
    wrong = [state for state in states if state not in (COLD, WARM)]
    if wrong:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is neither {COLD} nor {WARM}")
    return states
