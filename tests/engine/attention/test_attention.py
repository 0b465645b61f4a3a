"""Tree attention: every path through ``Segment`` equals a softmax written out query by query."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.attention import kernels, segment
from engine.attention.segment import Segment
from engine.kv.arena import BlockTable, KVArena
from engine.tree import TokenTree

HEAD_DIM = 8
BLOCK = 4


@dataclass
class Case:
    """One sequence: a tree (or chunk) behind a prefix, in an arena whose other rows hold garbage."""

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

    def attend(self, reference: bool, dtype: torch.dtype = torch.float32) -> Tensor:
        """``[1, n, n_heads, head_dim]`` as a layer gets it."""
        visible = None if self.tree.is_chain else self.tree.ancestor_mask()
        made = Segment(0, self.n_cached, self.depths, visible, self.table(), self.groups, reference)
        q, k, v = self.tensors(dtype)
        arena = KVArena(1, len(k) // BLOCK, BLOCK, self.n_kv_heads, HEAD_DIM, dtype, torch.device("cpu"))
        layer = arena.layer(0)
        layer.keys.copy_(k)
        layer.values.copy_(v)
        made.attend(q, layer, 0.3, None if self.window else 5)  # another layer's window must not be mixed up
        return made.attend(q, layer, 0.3, self.window)

    def by_hand(self) -> Tensor:
        """The definition, fp64."""
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
    Case,
    n_cached=st.integers(0, 40),
    tree=trees(),
    groups=st.sampled_from([1, 2, 4]),
    n_kv_heads=st.sampled_from([1, 2, 3]),
    window=st.none() | st.integers(1, 30),
    contiguous=st.booleans(),
    seed=st.integers(0, 999),
)


@given(CASES)
def test_one_masked_call_equals_the_definition(case: Case) -> None:
    wanted = case.by_hand()
    assert torch.allclose(case.attend(reference=True).double(), wanted, atol=1e-5)
    assert torch.allclose(case.attend(reference=False).double(), wanted, atol=1e-5)


@given(CASES, st.integers(1, 20))
def test_prefix_and_block_merged_by_log_sum_exp_equal_the_definition(case: Case, split_from: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "SPLIT_FROM", split_from)
        assert torch.allclose(case.attend(reference=False).double(), case.by_hand(), atol=1e-5)


@pytest.mark.parametrize("window", [None, segment.SPLIT_FROM + 1])
def test_a_long_prefix_is_split_without_being_told(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    n_merged = []

    def merge(*parts: Tensor) -> Tensor:
        n_merged.append(len(parts))
        return kernels.merge(*parts)

    monkeypatch.setattr(segment, "merge", merge)
    tree = TokenTree([5, 6, 7, 8], [-1, 0, 0, 1])
    case = Case(segment.SPLIT_FROM + 30, tree, 2, 2, window, contiguous=False, seed=1)
    assert torch.allclose(case.attend(reference=False).double(), case.by_hand(), atol=1e-5)
    assert n_merged


@given(CASES)
def test_a_kernel_may_lay_out_its_answer_as_it_likes(case: Case) -> None:
    """CUDA kernels return ``[1, n_heads, n, head_dim]`` as a transposed view."""

    def transposed(*args: object) -> tuple[Tensor, Tensor]:
        out, lse = kernels.block_attention(*args)  # type: ignore[arg-type]
        return out.transpose(1, 2).contiguous().transpose(1, 2), lse

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "SPLIT_FROM", 8)
        patch.setattr(segment, "block_attention", transposed)
        assert torch.allclose(case.attend(reference=False).double(), case.by_hand(), atol=1e-5)


@given(CASES, st.sampled_from([torch.bfloat16, torch.float16]))
def test_half_precision_is_near_on_both_paths(case: Case, dtype: torch.dtype) -> None:
    wanted = case.by_hand()
    for split_from in (6, segment.SPLIT_FROM):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(segment, "SPLIT_FROM", split_from)
            assert torch.allclose(case.attend(reference=False, dtype=dtype).double(), wanted, atol=0.1)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 999), st.floats(-60, 60))
def test_merging_two_blocks_equals_attending_to_both(n_a: int, n_b: int, seed: int, shift: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(1, 2, 3, HEAD_DIM, generator=generator)
    k, v = torch.randn(2, 1, 2, n_a + n_b, HEAD_DIM, generator=generator)
    k[..., n_a:, 0] += shift  # one block may drown the other
    whole, _ = kernels.math_attention(q, k, v, None, 0.5)
    for kernel in (kernels.math_attention, kernels.block_attention):
        a = kernel(q, k[..., :n_a, :], v[..., :n_a, :], None, 0.5)
        b = kernel(q, k[..., n_a:, :], v[..., n_a:, :], None, 0.5)
        assert torch.allclose(kernels.merge(*a, *b), whole, atol=1e-5)
