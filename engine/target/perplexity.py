"""The perplexity of whole texts under a model, one per text. Knows models, no drafts, no cache, no corpus.

Texts of a batch are padded to the longest and run through the layers of the engine's own shards, with plain causal
attention instead of the engine's tree attention: no text is continued, so nothing is cached. Padding stands behind a
text, where causal attention never looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from engine.attention.hook import PackedStep
from engine.kv.arena import KVArena
from engine.model.loader import load_shard, load_spec
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard

NAME = "spectra-causal"
ROWS = 256  # whose logits exist at a time: with a vocabulary of 128k, 128 MiB in fp32

Ids = npt.NDArray[np.int32]


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


class Perplexity:
    """Scores texts under a model: ``exp(-(1/t) sum_i log p(u_i | start, u_<i))``.

    Args:
        shards: all layers in order, each on its device; their attention is replaced, so they can score texts only.
        start: token before every text that does not begin with it, so that its first token has a context too; None:
            there is none, and a text's first token is context only.
    """

    def __init__(self, shards: Sequence[ModelShard], start: int | None) -> None:
        self._shards = shards
        self._start = start
        self._uncached = [_uncached(shard) for shard in shards]
        for shard in shards:
            for layer in shard.layers:
                layer.self_attn.config._attn_implementation = NAME  # type: ignore[union-attr]

    @classmethod
    def load(
        cls, path: Path, devices: Sequence[torch.device], dtype: torch.dtype, longest: int, start: int | None
    ) -> Perplexity:
        """Load a checkpoint, as many layers on each device as on the others.

        Args:
            path: of the checkpoint.
            devices: one or several; a model that no single one holds is spread over them.
            dtype: of weights and activations; logits are summed in fp32.
            longest: tokens of the longest text.
            start: see the class.

        Raises:
            UnsupportedModelError: the checkpoint cannot be run.
            ValueError: there are more devices than layers.
        """
        ranges = split_layers(load_spec(path).n_layers, len(devices))
        return cls(
            [
                load_shard(path, layers, dtype=dtype, device=device, n_positions=longest + 1)
                for layers, device in zip(ranges, devices, strict=True)
            ],
            start,
        )

    @torch.inference_mode()
    def __call__(self, texts: Sequence[Ids], /) -> npt.NDArray[np.float64]:
        """The perplexity of each text, fp64 ``[n]``, at least 1; infinite where it overflows or is no number.

        Raises:
            ValueError: a text has no token with a context.
        """
        tokens, lengths = self._padded(texts)
        if lengths.min() < 2:
            raise ValueError("a text needs a token with another one, or the start token, before it")
        hidden = self._hidden(tokens)
        is_context = torch.from_numpy(np.arange(tokens.shape[1] - 1) < lengths[:, None] - 1)
        found = self._log_probabilities(hidden[:, :-1][is_context.to(hidden.device)], tokens[:, 1:][is_context])
        firsts = np.concatenate(([0], np.cumsum(lengths - 1)[:-1]))
        with np.errstate(over="ignore"):
            perplexities = np.exp(-np.add.reduceat(found.astype(np.float64), firsts) / (lengths - 1))
        return np.nan_to_num(np.maximum(perplexities, 1.0), nan=np.inf, posinf=np.inf)

    def _padded(self, texts: Sequence[Ids]) -> tuple[Tensor, npt.NDArray[np.int64]]:
        """Token ids int64 ``[n, longest]`` with the start token where it is missing, and lengths ``[n]``."""
        missing = [self._start is not None and (not len(text) or text[0] != self._start) for text in texts]
        lengths = np.array([len(text) + more for text, more in zip(texts, missing, strict=True)], np.int64)
        padded = np.zeros((len(texts), lengths.max()), np.int64)
        for row, text, more, n in zip(padded, texts, missing, lengths, strict=True):
            row[0] = self._start if more else 0
            row[int(more) : n] = text
        return torch.from_numpy(padded), lengths

    def _hidden(self, tokens: Tensor) -> Tensor:
        """``[n, t]`` -> ``[n, t, hidden]`` behind the last layer, on the last device."""
        n, length = tokens.shape
        first = self._shards[0]
        hidden = first.embed(tokens.to(first.device).reshape(-1)).reshape(n, length, -1)
        for shard, uncached in zip(self._shards, self._uncached, strict=True):
            positions = torch.arange(length, device=shard.device)
            hidden, _ = shard.run(hidden.to(shard.device), positions, uncached)
        return hidden

    def _log_probabilities(self, hidden: Tensor, tokens: Tensor) -> npt.NDArray[np.float32]:
        """Log-probability of each of ``tokens`` ``[n]`` behind ``hidden`` ``[n, hidden]``, some rows at a
        time: with a large vocabulary, the logits of a batch would be larger than the model."""
        last, parts = self._shards[-1], []
        for states, wanted in zip(torch.split(hidden, ROWS), torch.split(tokens, ROWS), strict=True):
            logits = last.logits(states).float()
            chosen = logits.gather(1, wanted.to(logits.device).unsqueeze(1)).squeeze(1)
            parts.append((chosen - logits.logsumexp(dim=1)).cpu())
        return torch.cat(parts).numpy()


def _uncached(shard: ModelShard) -> PackedStep:
    """A step of a shard without a KV cache."""
    arena = KVArena(0, 0, 1, shard.spec.n_kv_heads, shard.spec.head_dim, shard.dtype, shard.device)
    return PackedStep(arena, [], None, None)
