"""Whole texts through the engine's own shards at once: nothing is drafted, continued or cached.

Texts of a batch are padded to the longest and attend with plain causal attention instead of the engine's tree
attention. Padding stands behind a text, where causal attention never looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from engine.attention.packed_step import PackedStep
from engine.kv.arena import KVArena
from engine.model.loader import load_shard, load_spec
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard

NAME = "spectra-causal"


def causal_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    sliding_window: int | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """``query`` ``[n, n_heads, t, head_dim]``, ``key`` and ``value`` ``[n, n_kv_heads, t, head_dim]``, rotated; returns
    ``[n, t, n_heads, head_dim]``."""
    length = query.shape[2]
    mask = None if sliding_window is None or sliding_window >= length else _window(length, sliding_window, query.device)
    is_grouped = query.shape[1] != key.shape[1]
    out = scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=is_grouped
    )
    return out.transpose(1, 2).contiguous(), None


def _window(length: int, window: int, device: torch.device) -> Tensor:
    """Which query sees which key, ``[length, length]``: itself and ``window - 1`` before it."""
    back = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
    return (back >= 0) & (back < window)


AttentionInterface.register(NAME, causal_attention)


class WholeTexts:
    """A model that reads whole texts.

    Args:
        shards: all layers in order, each on its device; their attention is replaced, so they can read whole texts only.
    """

    def __init__(self, shards: Sequence[ModelShard]) -> None:
        self.shards = shards
        self._uncached = [_uncached(shard) for shard in shards]
        for shard in shards:
            for layer in shard.layers:
                layer.self_attn.config._attn_implementation = NAME  # type: ignore[union-attr]

    @classmethod
    def load(
        cls,
        path: Path,
        devices: Sequence[torch.device],
        dtype: torch.dtype,
        longest: int,
        quantization: str | None = None,
    ) -> WholeTexts:
        """Load a checkpoint, as many layers on each device as on the others.

        Args:
            path: of the checkpoint.
            devices: one or several; a model that no single one holds is spread over them.
            dtype: of weights and activations.
            longest: tokens of the longest text.
            quantization: as ``load_shard`` takes it.

        Raises:
            UnsupportedModelError: the checkpoint cannot be run.
            ConfigError: ``quantization`` is unknown, or its package is not installed.
            ValueError: there are more devices than layers.
        """
        ranges = split_layers(load_spec(path).n_layers, len(devices))
        return cls(
            [
                load_shard(path, layers, dtype=dtype, device=device, n_positions=longest, quantization=quantization)
                for layers, device in zip(ranges, devices, strict=True)
            ]
        )

    def embed(self, tokens: Tensor) -> Tensor:
        """Token ids int64 ``[..]`` -> ``[.., hidden]``, on the first device."""
        first = self.shards[0]
        return first.embed(tokens.to(first.device).reshape(-1)).reshape(*tokens.shape, -1)

    def states(self, tokens: Tensor, taps: Sequence[int] = ()) -> tuple[Tensor, list[Tensor]]:
        """What the layers make of texts.

        Args:
            tokens: int64 ``[n, t]``.
            taps: layers whose outputs are wanted as well, from 0; -1 is the embedding.

        Returns:
            The last layer's output ``[n, t, hidden]``, before the final norm, and those of ``taps`` in their order;
            all on the last device.
        """
        last = self.shards[-1].device
        hidden = self.embed(tokens)
        tapped = {-1: hidden.to(last)} if -1 in taps else {}
        for shard, uncached in zip(self.shards, self._uncached, strict=True):
            positions = torch.arange(tokens.shape[1], device=shard.device)
            first = shard.range.first
            hidden, found = shard.run(hidden.to(shard.device), positions, uncached, [tap - first for tap in taps])
            tapped |= {first + local: output.to(last) for local, output in found.items()}
        return hidden, [tapped[tap] for tap in taps]


def _uncached(shard: ModelShard) -> PackedStep:
    """A step of a shard without a KV cache."""
    arena = KVArena(0, 0, 1, shard.spec.n_kv_heads, shard.spec.head_dim, shard.dtype, shard.device)
    return PackedStep(arena, [], None, None)
