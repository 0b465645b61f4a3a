"""Flags that change a new drafter's shape, and the methods that have each; loads nothing heavy."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, fields
from typing import Any, get_args

from app.offline.flags import check_least
from engine.drafter.spec import MarkovHeadKind, Method
from engine.errors import ConfigError

METHODS: tuple[Method, ...] = get_args(Method)
PARALLEL: tuple[Method, ...] = ("parallelspec-medusa", "parallelspec-eagle")
DFLASH: tuple[Method, ...] = ("dflash",)
MASKED: tuple[Method, ...] = ("p-eagle", *DFLASH)
DRAFTING, READING = ("medusa", *PARALLEL, *MASKED), ("eagle", *MASKED)
TAPS = "target layers to read, from 0 (--taps=-1: the embedding)"
MARKOV = "kind of the --markov-rank head (default: vanilla)"


def _flag(methods: tuple[Method, ...], says: str, default: Any = None, **how: Any) -> Any:
    """A field of ``ArchitectureOptions``; ``how`` goes to ``add_argument``."""
    says = f"{', '.join(methods)}: {says}" if len(methods) < 3 else says
    return field(default=default, metadata={"methods": methods, "how": {"help": says, **how}})


def _number(methods: tuple[Method, ...], says: str, metavar: str = "N") -> Any:
    return _flag(methods, says, type=int, metavar=metavar)


def _switch(methods: tuple[Method, ...], says: str) -> Any:
    return _flag(methods, says, False, action="store_true")


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(layer) for layer in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be a list of layers, such as 1,3,4") from None


@dataclass(frozen=True, slots=True)
class ArchitectureOptions:
    """Flags that change a drafter's shape; None and False leave it as published."""

    drafts: int | None = _number(DRAFTING, "tokens drafted in one forward pass; medusa: heads", "K")
    layers: int | None = _number(METHODS, "transformer layers; medusa: blocks of a head")
    draft_vocab: int | None = _number(METHODS, "draft only the N most frequent tokens of answers (target's rows)")
    own_head: bool = _switch(METHODS, "train a head instead of using the target's (EAGLE 3 as published)")
    generation: int | None = _flag(("eagle",), "version of EAGLE (default: 3)", type=int, choices=(1, 3))
    taps: tuple[int, ...] | None = _flag(READING, TAPS, type=_layers, metavar="L,L..")
    mask_state: str | None = _flag(PARALLEL, "state of mask rows (default: learned)", choices=("learned", "zero"))
    no_states: bool = _switch(("parallelspec-medusa",), "read only tokens")
    mask_token: int | None = _number(MASKED, "token id whose embedding the masks use", "ID")
    causal_block: bool = _switch(DFLASH, "slots see only earlier slots (JetSpec)")
    sample_from_anchor: bool = _switch(DFLASH, "slot 0 drafts too (DSpark)")
    markov_rank: int | None = _number(DFLASH, "rank of a head for the previous token (DSpark)", "R")
    markov_head: MarkovHeadKind | None = _flag(DFLASH, MARKOV, choices=get_args(MarkovHeadKind))  # noqa: RUF009
    confidence: bool = _switch(DFLASH, "a head that predicts acceptance (DSpark)")


def add_options(group: argparse._ArgumentGroup) -> None:
    for one in fields(ArchitectureOptions):
        group.add_argument(f"--{one.name.replace('_', '-')}", **one.metadata["how"])


def read_options(arguments: argparse.Namespace) -> ArchitectureOptions:
    return ArchitectureOptions(**{one.name: getattr(arguments, one.name) for one in fields(ArchitectureOptions)})


def check_options(method: Method, asked: ArchitectureOptions) -> None:
    """Raise ConfigError if an option is wrong for every target; the message names the flag."""
    for one in fields(ArchitectureOptions):
        able = one.metadata["methods"]
        if getattr(asked, one.name) not in (None, False) and method not in able:
            flag = f"--{one.name.replace('_', '-')}"
            raise ConfigError(f"{flag} does not apply to --method {method}; it is for {', '.join(able)}")
    least = 2 if method in (*PARALLEL, "p-eagle") else 1
    check_least(asked, {"drafts": least, "layers": 1, "draft_vocab": 1, "markov_rank": 1, "mask_token": 0})
    if method == "eagle" and asked.generation == 1 and (asked.taps or asked.own_head):
        raise ConfigError("--taps and --own-head are for --generation 3: EAGLE 1 reads no layer and has no head")
    if method == "eagle" and asked.generation != 1 and (asked.layers or 1) != 1:
        raise ConfigError(f"--layers is {asked.layers}; EAGLE 3 has 1 layer")
    if asked.markov_head is not None and asked.markov_rank is None:
        raise ConfigError(f"--markov-head is {asked.markov_head}, which needs --markov-rank")
