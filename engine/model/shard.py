"""A range of a model's layers, driven one by one, with what the first and the last stage add to it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from engine.attention.packed_step import NAME, PackedStep
from engine.device import set_precision
from engine.model.packed import pack_linears
from engine.model.ranges import LayerRange
from engine.model.spec import ModelSpec


class RotaryTable:
    """cos and sin of every position, taken from the model's own module once instead of at every step."""

    def __init__(self, rotary: nn.Module, spec: ModelSpec, n_positions: int, dtype: torch.dtype, device: torch.device):
        positions = torch.arange(n_positions, device=device)[None]
        like = torch.empty(0, dtype=dtype, device=device)
        kinds = sorted(set(spec.layer_types)) if spec.family == "gemma3_text" else [None]
        self._tables: dict[str | None, tuple[Tensor, Tensor]] = {}
        self.frequencies: dict[
            str | None, tuple[Tensor, float]
        ] = {}  # fp32 [head_dim / 2], and a factor of cos and sin
        for kind in kinds:
            prefix = "" if kind is None else f"{kind}_"
            scaling = float(getattr(rotary, f"{prefix}attention_scaling"))
            self.frequencies[kind] = (getattr(rotary, f"{prefix}inv_freq").to(device, torch.float32), scaling)
            cos, sin = rotary(like, positions) if kind is None else rotary(like, positions, kind)
            self._tables[kind] = (cos[0], sin[0])

    def at(self, positions: Tensor) -> dict[str | None, tuple[Tensor, Tensor]]:
        """``positions`` int64 ``[n]`` -> per layer type (cos, sin), ``[1, n, head_dim]``."""
        return {
            kind: (cos.index_select(0, positions).unsqueeze(0), sin.index_select(0, positions).unsqueeze(0))
            for kind, (cos, sin) in self._tables.items()
        }


class ModelShard:
    """Layers of one stage. Owns weights, knows nothing of sequences.

    Args:
        model: a Hugging Face causal LM whose kept modules hold real weights; others may be on the meta device.
        spec: of the whole model.
        layers: the range this shard runs; its modules' ``layer_idx`` become local to the shard.
        n_positions: longest text the shard will see, tokens.
        embeds: whether it embeds tokens though it is not the first; for a drafter beside the last layers.
    """

    def __init__(self, model: Any, spec: ModelSpec, layers: LayerRange, n_positions: int, embeds: bool = False) -> None:
        inner = model.model
        self.spec = spec
        self.range = layers
        self.layers: list[nn.Module] = list(inner.layers[layers.first : layers.last])
        weight = next(self.layers[0].parameters())  # a norm's or a bias's, if matrices are int8: those are buffers
        self.dtype, self.device = weight.dtype, weight.device
        set_precision(self.device)
        self._embed: nn.Module | None = inner.embed_tokens if layers.is_first or embeds else None
        self._norm: nn.Module | None = inner.norm if layers.is_last else None
        self._head: nn.Module | None = model.lm_head if layers.is_last else None
        self._rotary = RotaryTable(inner.rotary_emb, spec, n_positions, self.dtype, self.device)
        types = spec.layer_types[layers.first : layers.last]
        self._types: list[str | None] = list(types) if spec.family == "gemma3_text" else [None] * len(layers)
        model.eval()
        for local, layer in enumerate(self.layers):
            layer.self_attn.layer_idx = local  # type: ignore[union-attr]
            layer.self_attn.config._attn_implementation = NAME  # type: ignore[union-attr]
        self.windows = {window_of(layer.self_attn) for layer in self.layers}  # that the layers will ask for

    def pack_linears(self) -> None:
        """Pack the matrices of layers and head for inference, where they are fp32 on a CPU."""
        self.layers = [pack_linears(layer) for layer in self.layers]
        if self._head is not None:
            self._head = pack_linears(self._head)

    def embed(self, tokens: Tensor) -> Tensor:
        """Token ids int64 ``[n]`` -> ``[1, n, hidden]``."""
        embedded: Tensor = self.embedding(tokens.unsqueeze(0))
        return embedded

    @property
    def embedding(self) -> nn.Module:
        """The module behind ``embed``."""
        assert self._embed is not None, "this shard has no embedding"
        return self._embed

    @property
    def final_norm(self) -> nn.Module:
        """The module behind ``norm``."""
        assert self._norm is not None, "only the last stage has a norm"
        return self._norm

    @property
    def head_module(self) -> nn.Module:
        """The module behind ``head``."""
        assert self._head is not None, "only the last stage has a head"
        return self._head

    def frequencies(self, local: int) -> tuple[Tensor, float]:
        """Of a layer's rotary embedding: fp32 ``[head_dim / 2]``, and what cos and sin are multiplied by."""
        return self._rotary.frequencies[self._types[local]]

    def run(
        self, hidden: Tensor, positions: Tensor, packed: PackedStep, taps: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run all layers of the range.

        Args:
            hidden: ``[1, n, hidden]``.
            positions: int64 ``[n]``.
            packed: who sees whom, and where keys and values go.
            taps: local layers whose outputs are wanted as well.

        Returns:
            The last layer's output ``[1, n, hidden]``, and those of tapped layers.
        """
        rotary = self._rotary.at(positions)
        tapped: dict[int, Tensor] = {}
        for local, layer in enumerate(self.layers):
            hidden = layer(hidden, position_embeddings=rotary[self._types[local]], packed=packed)
            if local in taps:
                tapped[local] = hidden
        return hidden, tapped

    def logits(self, hidden: Tensor) -> Tensor:
        """``[n, hidden]`` -> ``[n, vocab]``, soft-capped where the model does so."""
        return self.head(self.norm(hidden))

    def norm(self, hidden: Tensor) -> Tensor:
        """The final norm: what the last layer leaves, ``[.., hidden]``, as the head reads it."""
        normed: Tensor = self.final_norm(hidden)
        return normed

    def head(self, normed: Tensor) -> Tensor:
        """``[.., hidden]`` as ``norm`` leaves it -> ``[.., vocab]``, soft-capped where the model does so."""
        logits: Tensor = self.head_module(normed)
        cap = self.spec.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def head_rows(self, tokens: Tensor) -> Tensor:
        """The head's rows ``[n, hidden]`` of token ids int64 ``[n]``; not of a packed head."""
        rows: Tensor = self.head_module.weight[tokens.to(self.device)]  # type: ignore[index]
        return rows


def window_of(attention: Any) -> int | None:
    """The sliding window that an attention module passes on: its own where layers differ, Mistral's the config's.

    A config may name a window that its family has no use for.
    """
    owner = attention.config if attention.config.model_type == "mistral" else attention
    return getattr(owner, "sliding_window", None)
