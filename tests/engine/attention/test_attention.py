"""Tree attention: every path through ``Segment``, and the oracle, equal a softmax written out query by query."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from engine.attention import segment
from engine.attention.oracle import oracle_attention
from engine.attention.segment import SPLIT_FROM, Segment, block_attention
from engine.kv.arena import BlockTable, KVArena
from engine.tree import BoolArray, TokenTree
from tests.support.pretended_device import pretended_device

HEAD_DIM = 8
BLOCK = 4


@dataclass
class TreeAttentionCase:
    """One sequence: a tree (or chunk) after a prefix, in an arena whose other rows hold garbage."""

    n_cached: int
    tree: TokenTree
    groups: int
    n_kv_heads: int
    window: int | None
    contiguous: bool
    seed: int

    @property
    def depths(self) -> list[int]:
        return [0, *self.tree.depths]

    def table(self) -> BlockTable:
        n_blocks = -(-(self.n_cached + len(self.depths)) // BLOCK)
        blocks = list(range(3, 3 + n_blocks))
        if not self.contiguous:
            random.Random(self.seed).shuffle(blocks)
        table = BlockTable(BLOCK)
        table.extend(blocks)
        return table

    def tensors(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
        """Queries ``[1, n_heads, n, head_dim]``, keys and values ``[n_rows, n_kv_heads, head_dim]``."""
        generator = torch.Generator().manual_seed(self.seed)
        n, n_rows = len(self.depths), BLOCK * (6 + (self.n_cached + len(self.depths)) // BLOCK)
        q = torch.randn(1, self.groups * self.n_kv_heads, n, HEAD_DIM, generator=generator)
        k, v = torch.randn(2, n_rows, self.n_kv_heads, HEAD_DIM, generator=generator)
        return q.to(dtype), k.to(dtype), v.to(dtype)

    @property
    def visible(self) -> BoolArray | None:
        return None if self.tree.is_chain else self.tree.ancestor_mask()

    def attend(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """``[1, n, n_heads, head_dim]`` as a layer gets it."""
        made = Segment(self.n_cached, self.depths, self.visible, self.table())
        q, k, v = self.tensors(dtype)
        arena = KVArena(1, len(k) // BLOCK, BLOCK, self.n_kv_heads, HEAD_DIM, dtype, torch.device("cpu"))
        layer = arena.layer(0)
        layer.keys.copy_(k)
        layer.values.copy_(v)
        made.attend(q, layer, 0.3, None if self.window else 5)  # another layer's window must not be mixed up
        return made.attend(q, layer, 0.3, self.window)

    def attend_by_oracle(self) -> Tensor:
        """``[1, n, n_heads, head_dim]`` in fp64."""
        q, k, v = self.tensors()
        rows = self.table().row_numbers(0, self.n_cached + len(self.depths))
        return oracle_attention(q[0].transpose(0, 1), k[rows], v[rows], self.depths, self.visible, 0.3, self.window)[
            None
        ]

    def by_hand(self) -> Tensor:
        """The definition, in fp64."""
        q, k, v = (tensor.double() for tensor in self.tensors())
        table, out = self.table(), torch.empty(1, len(self.depths), q.shape[1], HEAD_DIM, dtype=torch.float64)
        for row, depth in enumerate(self.depths):
            keys = [(slot, slot) for slot in range(self.n_cached)]  # (slot, position)
            above = [0, *(node + 1 for node in self.tree.path(row - 1))] if row else [0]
            keys += [(self.n_cached + own, self.n_cached + self.depths[own]) for own in above]
            reach = self.n_cached + depth - (self.window or 10**9)
            slots = [table.row(slot) for slot, position in keys if position > reach]
            for head in range(q.shape[1]):
                scores = k[slots, head // self.groups] @ q[0, head, row] * 0.3
                out[0, row, head] = torch.softmax(scores, dim=0) @ v[slots, head // self.groups]
        return out


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 10) -> TokenTree:
    """Any shape, chains often."""
    n = draw(st.integers(0, max_nodes))
    chain = draw(st.booleans())
    parents = [i - 1 if chain else draw(st.integers(-1, i - 1)) for i in range(n)]
    return TokenTree([draw(st.integers(3, 96)) for _ in range(n)], parents)


CASES = st.builds(
    TreeAttentionCase,
    n_cached=st.integers(0, 40),
    tree=trees(),
    groups=st.sampled_from([1, 2, 4]),
    n_kv_heads=st.sampled_from([1, 2, 3]),
    window=st.none() | st.integers(1, 30),
    contiguous=st.booleans(),
    seed=st.integers(0, 999),
)
LONG_PREFIX = TreeAttentionCase(
    SPLIT_FROM + 30, TokenTree([5, 6, 7, 8], [-1, 0, 0, 1]), 2, 2, None, contiguous=False, seed=1
)


def as_on_cuda(*args: object) -> tuple[Tensor, Tensor]:
    """Returns the output as a transposed view, as CUDA kernels do."""
    out, lse = block_attention(*args)  # type: ignore[arg-type]
    return out.transpose(1, 2).contiguous().transpose(1, 2), lse


@example(LONG_PREFIX, SPLIT_FROM, as_on_cuda)
@given(CASES, st.integers(1, 20) | st.just(SPLIT_FROM), st.sampled_from([block_attention, as_on_cuda]))
def test_attention_equals_the_definition_with_and_without_a_split_prefix(
    case: TreeAttentionCase, split_from: int, kernel: object
) -> None:
    expected = case.by_hand()
    assert torch.allclose(case.attend_by_oracle(), expected, atol=1e-12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "SPLIT_FROM", split_from)
        patch.setattr(segment, "block_attention", kernel)
        assert torch.allclose(case.attend().double(), expected, atol=1e-5)
        for dtype in (torch.bfloat16, torch.float16):
            assert torch.allclose(case.attend(dtype).double(), expected, atol=0.1)
    with pretended_device():
        assert torch.allclose(case.attend().double(), expected, atol=1e-5)
