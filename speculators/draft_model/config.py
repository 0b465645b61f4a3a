"""Settings of the draft model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.target_model.options import GIB, TargetOptions
from speculators.settings import Settings, setting


@dataclass(frozen=True, slots=True)
class DraftModelConfig(Settings):
    """Which model drafts, and how."""

    path: str | None = None  # directory or hub id
    draft_tokens: int = setting(5, "tokens of a draft: the length of a chain, or the depth of a tree", at_least=1)
    tree_nodes: int = setting(16, "nodes of the tree; 0 drafts a chain, the published method", at_least=0)
    tree_beam: int = setting(8, "nodes that are expanded per depth, and children of each", at_least=1)
    prefill_chunk: int = setting(512, "tokens of text read per step, over all requests whose cache lags", at_least=1)
    kv_gib: float = setting(0.25, "size of the draft model's KV cache in GiB", above=0, at_most=1024)
    block_size: int = setting(64, "tokens per KV cache block", at_least=1)
    dtype: str | None = setting(None, "dtype of the weights; by default float32 on a CPU, the checkpoint's on a GPU")
    device: str = setting("cpu", "device that runs the draft model")
    numerics: Literal["auto", "exact", "fast"] = setting("auto", "precision on cuda, as for a target")

    @classmethod
    def paper(cls, path: str | None = None) -> DraftModelConfig:
        """Return the published settings: a chain."""
        return cls(path, tree_nodes=0)

    @property
    def options(self) -> TargetOptions:
        """How to load the model; ``path`` must be set."""
        assert self.path is not None
        return TargetOptions(
            self.path,
            dtype=self.dtype,
            device=self.device,
            kv_bytes=int(self.kv_gib * GIB),
            block_size=self.block_size,
            numerics=self.numerics,
        )
