"""Runs whole texts through the engine's shards, without drafts or KV cache, and computes their perplexity.

Texts of a batch are padded at their end to the longest, and use plain causal attention, which never sees the padding.
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

from engine.attention.packed_step import PackedStep
from engine.kv.arena import KVArena
from engine.model.loader import load_shard, load_spec
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard

NAME = "spectra-causal"
ROWS = 256  # rows whose logits exist at a time: with a vocabulary of 128k, 128 MiB in fp32
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
    """Return ``[n, t, n_heads, head_dim]`` of rotated ``query`` ``[n, n_heads, t, head_dim]``.

    ``key`` and ``value`` are ``[n, n_kv_heads, t, head_dim]``.
    """
    length = query.shape[2]
    mask = None if sliding_window is None or sliding_window >= length else _window(length, sliding_window, query.device)
    is_grouped = query.shape[1] != key.shape[1]
    out = scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=is_grouped
    )
    return out.transpose(1, 2).contiguous(), None


def _window(length: int, window: int, device: torch.device) -> Tensor:
    """Return the mask ``[length, length]``: a query sees its own key and ``window - 1`` before it."""
    back = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
    return (back >= 0) & (back < window)


AttentionInterface.register(NAME, causal_attention)


class WholeTexts:
    """A model that runs whole texts.

    Args:
        shards: all layers in order, each on its device; their attention is replaced, so they run only whole texts.
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
        """Load a checkpoint, spread evenly over the devices.

        Args:
            path: of the checkpoint.
            devices: one or several.
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
        """Return the embeddings ``[.., hidden]`` of token ids int64 ``[..]``, on the first device."""
        first = self.shards[0]
        return first.embed(tokens.to(first.device).reshape(-1)).reshape(*tokens.shape, -1)

    def states(self, tokens: Tensor, taps: Sequence[int] = ()) -> tuple[Tensor, list[Tensor]]:
        """Run all layers on texts.

        Args:
            tokens: int64 ``[n, t]``.
            taps: layers whose outputs are returned as well, from 0; -1 is the embedding.

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
    """Return a step of a shard without a KV cache."""
    arena = KVArena(0, 0, 1, shard.spec.n_kv_heads, shard.spec.head_dim, shard.dtype, shard.device)
    return PackedStep(arena, [], None, None)


class Perplexity:
    """Computes perplexities ``exp(-(1/t) sum_i log p(u_i | start, u_<i))``.

    Args:
        model: the whole model.
        start: token that is put before every text that does not begin with it, so its first token is scored too. None:
            a text's first token is only context.
    """

    def __init__(self, model: WholeTexts, start: int | None) -> None:
        self._model = model
        self._start = start

    @classmethod
    def load(
        cls, path: Path, devices: Sequence[torch.device], dtype: torch.dtype, longest: int, start: int | None
    ) -> Perplexity:
        """Load a checkpoint.

        Args:
            path: of the checkpoint.
            devices: as ``WholeTexts.load`` takes them.
            dtype: of weights and activations; logits are summed in fp32.
            longest: tokens of the longest text, without a start token.
            start: see the class.

        Raises:
            UnsupportedModelError: the checkpoint cannot be run.
            ValueError: there are more devices than layers.
        """
        return cls(WholeTexts.load(path, devices, dtype, longest + 1), start)

    @torch.inference_mode()
    def __call__(self, texts: Sequence[Ids], /) -> npt.NDArray[np.float64]:
        """Return the perplexity of each text, fp64 ``[n]``, at least 1; infinite if it overflows or is NaN.

        Raises:
            ValueError: a text has no token with a context.
        """
        tokens, lengths = self._padded(texts)
        if lengths.min() < 2:
            raise ValueError("a text needs a token with another one, or the start token, before it")
        hidden, _ = self._model.states(tokens)
        is_context = torch.from_numpy(np.arange(tokens.shape[1] - 1) < lengths[:, None] - 1)
        found = self._log_probabilities(hidden[:, :-1][is_context.to(hidden.device)], tokens[:, 1:][is_context])
        firsts = np.concatenate(([0], np.cumsum(lengths - 1)[:-1]))
        with np.errstate(over="ignore"):
            perplexities = np.exp(-np.add.reduceat(found.astype(np.float64), firsts) / (lengths - 1))
        return np.nan_to_num(np.maximum(perplexities, 1.0), nan=np.inf, posinf=np.inf)

    def _padded(self, texts: Sequence[Ids]) -> tuple[Tensor, npt.NDArray[np.int64]]:
        """Return token ids int64 ``[n, longest]`` with the start token, and lengths ``[n]``."""
        missing = [self._start is not None and (not len(text) or text[0] != self._start) for text in texts]
        lengths = np.array([len(text) + more for text, more in zip(texts, missing, strict=True)], np.int64)
        padded = np.zeros((len(texts), lengths.max()), np.int64)
        for row, text, more, n in zip(padded, texts, missing, lengths, strict=True):
            row[0] = self._start if more else 0
            row[int(more) : n] = text
        return torch.from_numpy(padded), lengths

    def _log_probabilities(self, hidden: Tensor, tokens: Tensor) -> npt.NDArray[np.float32]:
        """Return log-probabilities of ``tokens`` ``[n]`` after ``hidden`` ``[n, hidden]``, computed ``ROWS`` at a time.

        With a large vocabulary, the logits of a batch would be larger than the model.
        """
        last, parts = self._model.shards[-1], []
        for states, targets in zip(torch.split(hidden, ROWS), torch.split(tokens, ROWS), strict=True):
            logits = last.logits(states).float()
            chosen = logits.gather(1, targets.to(logits.device).unsqueeze(1)).squeeze(1)
            parts.append((chosen - logits.logsumexp(dim=1)).cpu())
        return torch.cat(parts).numpy()
