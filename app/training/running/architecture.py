"""What drafter is trained for a target: its method's published shape, in the target's sizes, but for what is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import msgspec

from engine.drafter.checkpoint.ids import default_taps, dflash_taps
from engine.drafter.checkpoint.layers import LayerConfig, decode, read_layer_shape
from engine.drafter.spec import DrafterSpec, LayerShape, MarkovHeadKind, Method
from engine.errors import ConfigError
from engine.model.loader import load_config
from engine.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class ArchitectureOptions:
    """What may be asked of a drafter; None and False: nothing, so that it is as published."""

    generation: int | None = None
    drafts: int | None = None
    layers: int | None = None
    taps: tuple[int, ...] | None = None
    draft_vocab: int | None = None
    mask_token: int | None = None
    mask_state: str | None = None  # learned or zero
    no_states: bool = False
    causal_block: bool = False
    sample_from_anchor: bool = False
    markov_rank: int | None = None
    markov_head: MarkovHeadKind | None = None
    confidence: bool = False


_MASKED = ("drafts", "layers", "draft_vocab")
USES = {  # what can be asked of a method
    "medusa": ("drafts", "layers"),
    "eagle": ("generation", "layers", "taps", "draft_vocab"),
    "parallelspec-medusa": (*_MASKED, "mask_state", "no_states"),
    "parallelspec-eagle": (*_MASKED, "mask_state"),
    "p-eagle": (*_MASKED, "taps", "mask_token"),
    "dflash": (
        *(*_MASKED, "taps", "mask_token", "causal_block", "sample_from_anchor", "markov_rank", "markov_head"),
        "confidence",
    ),
}
DRAFTS = {"medusa": 5, "parallelspec-medusa": 5, "parallelspec-eagle": 5, "p-eagle": 7, "dflash": 15}
LAYERS = {"p-eagle": 4, "dflash": 5}  # others: 1
DSPARK_DRAFTS = 7


def check_asked(method: Method, asked: ArchitectureOptions) -> None:
    """What is wrong whatever the target is.

    Raises:
        ConfigError: names the flag, its value, and what would be right.
    """
    for field in fields(ArchitectureOptions):
        value = getattr(asked, field.name)
        if value not in (None, False) and field.name not in USES[method]:
            able = ", ".join(name for name, used in USES.items() if field.name in used)
            raise ConfigError(f"{flag(field.name)} is given, but {method} has no such thing; it is for {able}")
    least = 2 if method in ("parallelspec-medusa", "parallelspec-eagle", "p-eagle") else 1
    for name, smallest in {"drafts": least, "layers": 1, "draft_vocab": 1, "markov_rank": 1, "mask_token": 0}.items():
        value = getattr(asked, name)
        if value is not None and value < smallest:
            raise ConfigError(f"{flag(name)} is {value}; it must be at least {smallest}")
    if method == "eagle" and asked.generation == 1 and (asked.taps or asked.draft_vocab):
        raise ConfigError("--taps and --draft-vocab are for --generation 3: EAGLE 1 reads no layer")
    if method == "eagle" and asked.generation != 1 and (asked.layers or 1) != 1:
        raise ConfigError(f"--layers is {asked.layers}; EAGLE 3 has 1 layer")
    if asked.markov_head is not None and asked.markov_rank is None:
        raise ConfigError(f"--markov-head is {asked.markov_head}, but there is no such head: --markov-rank is needed")


def new_spec(
    method: Method, asked: ArchitectureOptions, path: Path, target: ModelSpec, mask_tokens: Sequence[int]
) -> DrafterSpec:
    """The drafter for a target.

    Args:
        asked: as ``check_asked`` lets pass.
        mask_tokens: tokens of its vocabulary that texts do not have, the best first.

    Raises:
        ConfigError: the target has no such layers or tokens.
    """
    n_drafts = asked.drafts or (DSPARK_DRAFTS if asked.sample_from_anchor else DRAFTS.get(method))
    plain = DrafterSpec(
        method=method,
        generation=1,
        target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=_draft_vocab(asked, target),
        taps=(),
        layers=None,
        own_head=asked.draft_vocab is not None,
    )
    if method == "medusa":
        return replace(plain, n_drafts=n_drafts, n_heads=n_drafts or 0, n_head_layers=asked.layers or 1)
    shape = replace(_shape(path), n_layers=asked.layers or LAYERS.get(method, 1))
    spec = replace(plain, layers=shape, n_drafts=n_drafts)
    if method.startswith("parallelspec"):
        learned = asked.mask_state != "zero" and not asked.no_states
        return replace(spec, reads_states=not asked.no_states, has_mask_state=learned)
    if method == "eagle" and asked.generation == 1:
        return spec
    tapped = replace(spec, taps=_taps(method, asked, target, shape.n_layers))
    if method == "eagle":
        return replace(tapped, generation=3)
    masked = replace(tapped, mask_token_id=_mask_token(asked, target, mask_tokens))
    return replace(masked, has_mask_state=True) if method == "p-eagle" else _block(masked, asked)


def _block(spec: DrafterSpec, asked: ArchitectureOptions) -> DrafterSpec:
    """DFlash, JetSpec and DSpark."""
    assert spec.layers is not None
    return replace(
        spec,
        layers=replace(spec.layers, qk_norm=True),
        causal_block=asked.causal_block,
        sample_from_anchor=asked.sample_from_anchor,
        markov_rank=asked.markov_rank or 0,
        markov_head=asked.markov_head or "vanilla",
        has_confidence=asked.confidence,
        confidence_with_markov=asked.confidence and asked.markov_rank is not None,
    )


def _shape(path: Path) -> LayerShape:
    """Of the target's layers, as drafters have them: with SiLU, attending to everything."""
    config = decode(path, load_config(path).to_dict(), LayerConfig)
    return read_layer_shape(path, msgspec.structs.replace(config, hidden_act=None, layer_types=None), {})


def _draft_vocab(asked: ArchitectureOptions, target: ModelSpec) -> int:
    n = asked.draft_vocab or target.vocab_size
    if n > target.vocab_size:
        raise ConfigError(f"--draft-vocab is {n}; the target has {target.vocab_size} tokens")
    return n


def _taps(method: Method, asked: ArchitectureOptions, target: ModelSpec, n_layers: int) -> tuple[int, ...]:
    """Published ones of shallow targets may coincide, or lie before the first layer."""
    if asked.taps is None:
        eagle = default_taps(target.n_layers)
        found = dflash_taps(target.n_layers, n_layers) if method == "dflash" else eagle
        return tuple(sorted({min(max(0, tap), target.n_layers - 1) for tap in found}))
    if not all(-1 <= tap < target.n_layers for tap in asked.taps) or len(set(asked.taps)) < len(asked.taps):
        given = ",".join(map(str, asked.taps))
        raise ConfigError(f"--taps is {given}; layers of this target are 0 to {target.n_layers - 1}, each once")
    return asked.taps


def _mask_token(asked: ArchitectureOptions, target: ModelSpec, mask_tokens: Sequence[int]) -> int:
    token = asked.mask_token if asked.mask_token is not None else next(iter(mask_tokens), None)
    if token is None or token >= target.vocab_size:
        raise ConfigError(
            f"--mask-token is {token}; it must be an id below {target.vocab_size} that texts do not have, such as that "
            "of padding"
        )
    return token


def flag(name: str) -> str:
    """The flag of a field."""
    return f"--{name.replace('_', '-')}"
