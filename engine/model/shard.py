"""Runs a range of a model's layers, the embedding on the first stage, and norm and head on the last."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from engine.attention.packed_step import NAME, PackedStep
from engine.device import set_precision
from engine.model.exchange import Ranks
from engine.model.families import get_family
from engine.model.matrices.linears import PackedLinear, pack_linears
from engine.model.ranges import LayerRange
from engine.model.share import WHOLE, RankShare
from engine.model.spec import ModelSpec


class RotaryTable:
    """cos and sin of every position, computed once by the model's own module instead of at every step."""

    def __init__(self, rotary: nn.Module, spec: ModelSpec, n_positions: int, dtype: torch.dtype, device: torch.device):
        positions = torch.arange(n_positions, device=device)[None]
        like = torch.empty(0, dtype=dtype, device=device)
        kinds = sorted(set(rope_types(spec)), key=str)
        self._tables: dict[str | None, tuple[Tensor, Tensor]] = {}
        # Per layer type: fp32 [head_dim / 2], and the factor of cos and sin.
        self.frequencies: dict[str | None, tuple[Tensor, float]] = {}
        for kind in kinds:
            prefix = "" if kind is None else f"{kind}_"
            scaling = float(getattr(rotary, f"{prefix}attention_scaling"))
            self.frequencies[kind] = (getattr(rotary, f"{prefix}inv_freq").to(device, torch.float32), scaling)
            cos, sin = rotary(like, positions) if kind is None else rotary(like, positions, kind)
            self._tables[kind] = (cos[0], sin[0])

    def at(self, positions: Tensor) -> dict[str | None, tuple[Tensor, Tensor]]:
        """Return (cos, sin) ``[1, n, head_dim]`` of ``positions`` int64 ``[n]`` for each layer type."""
        return {
            kind: (cos.index_select(0, positions).unsqueeze(0), sin.index_select(0, positions).unsqueeze(0))
            for kind, (cos, sin) in self._tables.items()
        }


class ModelShard:
    """The weights of one stage, or a rank's share of them; knows nothing of sequences.

    Args:
        model: a Hugging Face causal LM with the weights of the range; its other modules may be on the meta device.
        spec: of the whole model.
        layers: the range this shard runs; its modules' ``layer_idx`` become local to the shard.
        n_positions: length of the longest text, tokens.
        embeds: whether a shard that is not the first embeds tokens as well, for a drafter on the last stage.
        ranks: of the stage, whose share the model has (``put_ranks``); None: it has all weights.
    """

    def __init__(
        self,
        model: Any,
        spec: ModelSpec,
        layers: LayerRange,
        n_positions: int,
        embeds: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        inner = model.model
        self.ranks = ranks
        self.spec = self.share.spec(spec)  # with the heads of this rank
        self.range = layers
        self.layers: list[nn.Module] = list(inner.layers[layers.first : layers.last])
        weight = next(self.layers[0].parameters())  # int8 matrices are buffers, so this may be a norm
        self.dtype, self.device = weight.dtype, weight.device
        set_precision(self.device)
        self._embed: nn.Module | None = inner.embed_tokens if layers.is_first or embeds else None
        self._norm: nn.Module | None = inner.norm if layers.is_last else None
        self._head: nn.Module | None = model.lm_head if layers.is_last else None
        self._rotary = RotaryTable(inner.rotary_emb, spec, n_positions, self.dtype, self.device)
        self._types = rope_types(spec)[layers.first : layers.last]
        model.eval()
        for local, layer in enumerate(self.layers):
            layer.self_attn.layer_idx = local  # type: ignore[union-attr]
            layer.self_attn.config._attn_implementation = NAME  # type: ignore[union-attr]
        self.windows = {window_of(layer.self_attn) for layer in self.layers}

    @property
    def share(self) -> RankShare:
        return WHOLE if self.ranks is None else self.ranks.share

    def pack_linears(self) -> None:
        """Pack the fp32 matrices of layers and head on a CPU."""
        self.layers = [pack_linears(layer) for layer in self.layers]
        if self._head is not None:
            self._head = pack_linears(self._head)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings ``[1, n, hidden]`` of token ids int64 ``[n]``."""
        embedded: Tensor = self.embedding(tokens.unsqueeze(0))
        return embedded

    @property
    def embedding(self) -> nn.Module:
        assert self._embed is not None, "this shard has no embedding"
        return self._embed

    @property
    def final_norm(self) -> nn.Module:
        assert self._norm is not None, "only the last stage has a norm"
        return self._norm

    @property
    def head_module(self) -> nn.Module:
        assert self._head is not None, "only the last stage has a head"
        return self._head

    def frequencies(self, local: int) -> tuple[Tensor, float]:
        """Return a layer's rotary frequencies fp32 ``[head_dim / 2]``, and the factor of cos and sin."""
        return self._rotary.frequencies[self._types[local]]

    def run(
        self, hidden: Tensor, positions: Tensor, packed: PackedStep, taps: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run all layers of the range.

        Args:
            hidden: ``[1, n, hidden]``.
            positions: int64 ``[n]``.
            packed: which rows attend to which keys, and where keys and values go.
            taps: local layers whose outputs are returned as well.

        Returns:
            The last layer's output ``[1, n, hidden]``, and those of ``taps``.
        """
        rotary = self._rotary.at(positions)
        tapped: dict[int, Tensor] = {}
        for local, layer in enumerate(self.layers):
            hidden = layer(hidden, position_embeddings=rotary[self._types[local]], packed=packed)
            if local in taps:
                tapped[local] = hidden
        return hidden, tapped

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits ``[n, vocab]`` of the last layer's output ``[n, hidden]``."""
        return self.head(self.norm(hidden))

    def norm(self, hidden: Tensor) -> Tensor:
        """Apply the final norm to the last layer's output ``[.., hidden]``."""
        normed: Tensor = self.final_norm(hidden)
        return normed

    def head(self, normed: Tensor) -> Tensor:
        """Return the logits ``[.., vocab]`` of normalized rows ``[.., hidden]``, soft-capped if the model does so."""
        logits: Tensor = self.head_module(normed)
        return self._soft_cap(logits)

    def _soft_cap(self, logits: Tensor) -> Tensor:
        cap = self.spec.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def head_rows(self, tokens: Tensor) -> Tensor:
        """Return the head's rows ``[n, hidden]`` of token ids int64 ``[n]``; fails for a head that ranks share."""
        head, tokens = self.head_module, tokens.to(self.device)
        rows: Tensor = head.unpacked()[tokens] if isinstance(head, PackedLinear) else head.weight[tokens]  # type: ignore[index]
        return rows

    def head_over(self, tokens: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a head that scores only token ids int64 ``[n]``: from normalized rows ``[.., hidden]`` to ``[.., n]``.

        It copies their rows. A head that ranks share has none to copy: it scores all tokens, then selects.
        """
        whole = self.head_module
        if type(whole) not in (nn.Linear, PackedLinear):
            ids = tokens.to(self.device)
            return lambda normed: self.head(normed).index_select(-1, ids)
        rows = self.head_rows(tokens)
        linear = nn.Linear(rows.shape[1], len(rows), bias=False, device="meta")
        linear.weight = nn.Parameter(rows, requires_grad=False)
        head = pack_linears(linear) if isinstance(whole, PackedLinear) else linear
        return lambda normed: self._soft_cap(head(normed))


def rope_types(spec: ModelSpec) -> list[str | None]:
    """Return the layer type that selects each layer's rotary frequencies; None if all layers have the same."""
    return list(spec.layer_types) if get_family(spec.family).has_rope_per_layer_type else [None] * spec.n_layers


def window_of(attention: Any) -> int | None:
    """Return the sliding window of a Hugging Face attention module in tokens; None if it attends to everything."""
    # A config may name a window that its family does not use.
    where = get_family(attention.config.model_type).window
    owner = {"config": attention.config, "layer": attention, None: None}[where]
    return getattr(owner, "sliding_window", None)
