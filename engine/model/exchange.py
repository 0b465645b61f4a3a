"""What the tensor-parallel ranks of a stage exchange, and the modules that call it in the place of Hugging Face's.

All ranks call the same methods in the same order. Rank 0, the leader, also draws tokens: only it needs logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.model.matrices.experts import Experts
from engine.model.matrices.linears import ScaledLinear
from engine.model.share import RankShare
from engine.model.spec import ModelSpec

# Completes the sums of some rows of ``RankExchange.add`` and writes them to its ``out``. It takes fp32
# ``[n_parts * rows, n_out]``, one part's rows after another's, whose tree (``add_tree``) is the whole sum.
FinishSums = Callable[[Tensor, slice], None]


class RankExchange(Protocol):
    """Connects the ranks of a stage. Methods raise EOFError or OSError when a rank is lost."""

    is_lost: bool  # whether exchanges on a device were aborted, so that their results are garbage

    def add(self, partial: Tensor, out: Tensor, finish: FinishSums) -> None:
        """Add the partial sums of all ranks, complete them with ``finish``, and fill ``out`` on every rank.

        Args:
            partial: this rank's sums, fp32 ``[n, n_out]``.
            out: ``[n, n_out]``.
            finish: is called with the rows that this rank has to complete.
        """

    def gather(self, part: Tensor) -> Tensor:
        """Return the columns of all ranks, ``[n, size * width]``, on every rank; ``part`` is ``[n, width]``."""

    def share(self, rows: Tensor) -> None:
        """Leader: send rows ``[n, width]`` to all other ranks, which multiply them by their part of the head."""

    def broadcast(self, rows: Tensor) -> None:
        """Send the leader's rows ``[n, width]`` to all other ranks, which fill theirs."""

    def collect(self, part: Tensor) -> Tensor:
        """Return the columns of all ranks, ``[n, size * width]``, to the leader; others get ``part`` back."""

    def close(self, waits: bool = False) -> None:
        """End it, though not its links; ``waits`` until its transfers are aborted, too."""


@dataclass(slots=True)
class Ranks:
    """A rank's share of its stage, and its connection to the others, which a new connection replaces."""

    share: RankShare
    whole: ModelSpec  # of the whole model
    exchange: RankExchange | None = None

    @property
    def connected(self) -> RankExchange:
        assert self.exchange is not None, "the ranks of a stage are connected before its first step"
        return self.exchange


class SummedLinear(nn.Module):
    """``nn.Linear`` whose inputs are split over ranks: their fp32 sums are added, then scaled, then get the bias.

    Args:
        linear: has the rank's columns, and the whole bias.
        ranks: of the stage.
    """

    def __init__(self, linear: nn.Linear | ScaledLinear, ranks: Ranks) -> None:
        super().__init__()
        self.bias, linear.bias = linear.bias, None
        self.linear, self.ranks = linear, ranks  # the linear may be replaced by a packed one

    def forward(self, rows: Tensor) -> Tensor:
        """Return ``[.., n_out]`` of this rank's inputs ``[.., n_in / size]``, the same on every rank."""
        flat = rows.reshape(-1, rows.shape[-1])
        partial = self._multiply(flat)
        out = flat.new_empty(partial.shape)

        def finish(sums: Tensor, some: slice) -> None:
            total = add_tree(sums.view(len(sums) // max(1, some.stop - some.start), -1, sums.shape[1]))
            if isinstance(self.linear, ScaledLinear):
                total = total * self.linear.output_scales
            out[some] = (total if self.bias is None else total + self.bias).to(out.dtype)

        if len(flat):
            self.ranks.connected.add(partial, out, finish)
        return out.view(*rows.shape[:-1], -1)

    def _multiply(self, rows: Tensor) -> Tensor:
        """Return this rank's sums, fp32 ``[n, n_out]``; a one-byte weight's are not scaled yet."""
        if isinstance(self.linear, ScaledLinear):
            wide = torch.float32 if rows.dtype == torch.float16 else rows.dtype
            return functional.linear(rows.to(wide), self.linear.weight.to(wide)).float()
        product: Tensor = self.linear(rows)
        return product.float()


class SummedExperts(nn.Module):
    """Experts that ranks share, each of which has some: their fp32 sums are added.

    Args:
        experts: has the rank's own.
        ranks: of the stage.
    """

    def __init__(self, experts: Experts, ranks: Ranks) -> None:
        super().__init__()
        self.experts, self.ranks = experts, ranks

    def forward(self, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Return the same as ``Experts.forward`` on every rank."""
        partial = self.experts.sum_own(hidden, top_k_index, top_k_weights)
        out = torch.empty_like(hidden)

        def finish(sums: Tensor, some: slice) -> None:
            total = add_tree(sums.view(len(sums) // max(1, some.stop - some.start), -1, sums.shape[1]))
            out[some] = total.to(out.dtype)

        if len(hidden):
            self.ranks.connected.add(partial, out, finish)
        return out


class GatheredLinear(nn.Module):
    """A linear layer that needs whole rows, as LLM.int8() does to scale them, and is split by outputs.

    Args:
        linear: has the rank's outputs.
        ranks: of the stage.
    """

    def __init__(self, linear: nn.Module, ranks: Ranks) -> None:
        super().__init__()
        self.linear, self.ranks = linear, ranks

    def forward(self, rows: Tensor) -> Tensor:
        """Return ``[.., n_out]`` of this rank's inputs ``[.., n_in / size]``, the same on every rank."""
        exchange, flat = self.ranks.connected, rows.reshape(-1, rows.shape[-1])
        out = exchange.gather(self.linear(exchange.gather(flat)))
        return out.view(*rows.shape[:-1], -1)


class ShardedHead(nn.Module):
    """A vocabulary head whose outputs are split over ranks; only the leader calls it.

    Args:
        linear: has the rank's outputs, padded to the same number on all ranks.
        ranks: of the stage.
        n_out: outputs of all ranks.
    """

    def __init__(self, linear: nn.Linear, ranks: Ranks, n_out: int) -> None:
        super().__init__()
        self.linear, self.ranks, self.n_out = linear, ranks, n_out
        self.multiply: Callable[[Tensor], Tensor] = self._multiply  # an executor replaces it, on all ranks

    def forward(self, normed: Tensor) -> Tensor:
        """Return the logits ``[.., n_out]`` of normalized rows ``[.., hidden]``."""
        exchange, flat = self.ranks.connected, normed.reshape(-1, normed.shape[-1])
        exchange.share(flat)
        logits = exchange.collect(self.multiply(flat))[:, : self.n_out]
        return logits.reshape(*normed.shape[:-1], self.n_out)

    def _multiply(self, rows: Tensor) -> Tensor:
        product: Tensor = self.linear(rows)
        return product


def add_tree(parts: Sequence[Tensor] | Tensor) -> Tensor:
    """Return the sum of the parts as a binary tree: halves first."""
    n = len(parts)
    if n == 1:
        return parts[0]
    half = 1 << ((n - 1).bit_length() - 1)  # 3 parts: (0 + 1) + 2
    return add_tree(parts[:half]) + add_tree(parts[half:])


def put_ranks(model: nn.Module, ranks: Ranks, layers: range, n_vocab: int, is_gathered: bool = False) -> None:
    """Replace the modules of a causal LM whose products need other ranks; its weights are this rank's parts already.

    Args:
        model: Hugging Face's.
        ranks: of the stage.
        layers: that this process runs.
        n_vocab: rows of the whole head; 0: the stage has no head.
        is_gathered: as for ``RankShare.part``.
    """
    for i in layers:
        layer = model.get_submodule(f"model.layers.{i}")
        experts: Any = getattr(layer.mlp, "experts", None)
        if experts is not None:
            experts.drop_others(ranks.share.own_experts(ranks.whole))
            layer.mlp.experts = SummedExperts(experts, ranks)  # type: ignore[union-attr]
        summed = [(layer.self_attn, "o_proj"), *([(layer.mlp, "down_proj")] if experts is None else [])]
        for owner, name in summed:
            linear = getattr(owner, name)
            setattr(owner, name, GatheredLinear(linear, ranks) if is_gathered else SummedLinear(linear, ranks))
    if n_vocab:
        model.lm_head = ShardedHead(model.lm_head, ranks, n_vocab)  # type: ignore[arg-type]
