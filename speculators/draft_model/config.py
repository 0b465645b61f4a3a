"""Settings of the draft model."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ConfigError
from engine.target.options import AUTO, EXACT, FAST, TargetOptions

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class DraftModelConfig:
    """Which model drafts, and how.

    Raises:
        ConfigError: a value is out of range.
    """

    path: str | None = None  # directory or hub id; the method needs one
    draft_tokens: int = 5  # K, tokens per draft: the depth of the tree, if it is one
    tree_nodes: int = 16  # nodes of the tree; 0 drafts a chain, the published method
    tree_beam: int = 8  # nodes expanded per depth, and children of each
    prefill_chunk: int = 512  # tokens of text read per step, over all requests whose cache lags behind
    kv_gib: float = 0.25  # the drafter's cache, GiB
    block_size: int = 64  # tokens per block
    dtype: str | None = None  # None: float32 on a CPU, the checkpoint's on a GPU
    device: str = "cpu"
    numerics: str = AUTO  # on cuda, as for a target

    @classmethod
    def paper(cls, path: str | None = None) -> DraftModelConfig:
        """As published: a chain."""
        return cls(path, tree_nodes=0)

    def __post_init__(self) -> None:
        for name in ("draft_tokens", "tree_beam", "prefill_chunk", "block_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"draft-model: {name} must be at least 1, got {getattr(self, name)}")
        if self.tree_nodes < 0:
            raise ConfigError(f"draft-model: tree_nodes must be 0 (a chain) or more, got {self.tree_nodes}")
        if not 0 < self.kv_gib < float("inf"):
            raise ConfigError(f"draft-model: kv_gib must be above 0, got {self.kv_gib}")
        if self.numerics not in (AUTO, EXACT, FAST):
            raise ConfigError(f"draft-model: numerics must be {AUTO}, {EXACT} or {FAST}, got {self.numerics!r}")

    @property
    def options(self) -> TargetOptions:
        """To load the model with; ``path`` must be set."""
        assert self.path is not None
        return TargetOptions(
            self.path,
            dtype=self.dtype,
            device=self.device,
            kv_bytes=int(self.kv_gib * GIB),
            block_size=self.block_size,
            numerics=self.numerics,
        )
