"""The interface between a target and its scheduler, in one process or over channels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from engine.drafter.settings import DrafterInfo
from engine.errors import ConfigError
from engine.kv.blocks import block_bytes
from engine.model.identity import UNKNOWN, ModelIdentity
from engine.model.share import RankShare
from engine.model.spec import ModelSpec
from engine.simulated.profile import SIMULATED
from engine.step import Step, StepResult
from engine.target_model.options import TargetOptions

MAX_TREE = 1024  # nodes of one tree
_ANOTHER = {"spec": "another architecture", "drafter": "another drafter"}


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """Description of a target for its scheduler."""

    spec: ModelSpec
    n_blocks: int  # KV blocks, the same number on every stage
    block_size: int  # tokens per block
    max_model_len: int  # tokens, prompt + output
    identity: ModelIdentity = UNKNOWN
    drafter: DrafterInfo | None = None  # a trained one on the last stage

    def difference(self, other: TargetInfo) -> str:
        """Describe how another target differs; "" if either can replace the other."""
        found = [self.identity.difference(other.identity)]
        for name in ("spec", "n_blocks", "block_size", "max_model_len", "drafter"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                is_whole = name in ("spec", "drafter")
                found.append(_ANOTHER[name] if is_whole else f"{name} {theirs} instead of {ours}")
        return ", ".join(filter(None, found))


class Target(Protocol):
    """Runs steps in the order of the calls."""

    info: TargetInfo

    def step(self, step: Step) -> StepResult:
        """Run one micro-batch through all stages; results are in the order of its work."""


def plan_cache(
    spec: ModelSpec, options: TargetOptions, item_bytes: int, drafter: DrafterInfo | None = None
) -> TargetInfo:
    """Return the number of KV blocks that fit into the budget, with the drafter's cache, and the longest text.

    Args:
        spec: of the target.
        options: with the budget, ``kv_bytes``.
        item_bytes: of a key's or value's number.
        drafter: on the last stage.

    Raises:
        ConfigError: the budget holds fewer than 4 blocks, or ``max_model_len`` exceeds the model's.
    """
    assert options.kv_bytes is not None, "with_cache comes before"
    size = options.block_size
    per_block = bytes_of_block(spec, options, item_bytes, drafter)
    n_blocks = options.kv_bytes // per_block
    if n_blocks < 4:
        raise ConfigError(f"kv_bytes is {options.kv_bytes}: a block takes {per_block} bytes, at least 4 are needed")
    if options.max_model_len is not None and not 1 <= options.max_model_len <= spec.max_positions:
        raise ConfigError(
            f"max_model_len is {options.max_model_len}; this model allows 1 to {spec.max_positions} tokens"
        )
    # One block is left for the tree after the text.
    fits = (n_blocks - 1) * size
    longest = min(options.max_model_len or spec.max_positions, fits)
    return TargetInfo(spec, n_blocks, size, longest, drafter=drafter)


def bytes_of_block(spec: ModelSpec, options: TargetOptions, item_bytes: int, drafter: DrafterInfo | None = None) -> int:
    """Return the bytes of a KV block over all stages and ranks; arguments as for ``plan_cache``."""
    own, size = RankShare(0, options.tensor_parallel).spec(spec), options.block_size
    of_ranks = options.tensor_parallel * block_bytes(spec.n_layers, size, own.n_kv_heads, spec.head_dim, item_bytes)
    return of_ranks + (0 if drafter is None else size * drafter.cache_bytes)


def simulated_spec(spec: ModelSpec, options: TargetOptions) -> ModelSpec:
    """Return the spec with at least one layer for every stage if the target is simulated, else the spec itself."""
    if options.simulation is None:
        return spec
    n_layers = max(spec.n_layers, options.stages)
    return replace(spec, family=SIMULATED, n_layers=n_layers, layer_types=("full_attention",) * n_layers)


def positions(info: TargetInfo) -> int:
    """Return the positions of a stage's rotary tables: the longest text and the tree after it."""
    return info.max_model_len + MAX_TREE
