"""Attention of several sequences at once equals the definition, sequence by sequence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.attention import batches as attention_batches
from engine.attention.batches import Share, attend_batches, make_batches
from engine.kv.arena import BlockTable, KVArena
from engine.tree import EMPTY_TREE, TokenTree
from engine.upload import Upload
from tests.engine.attention.test_attention import BLOCK, CASES, HEAD_DIM, Case

CPU = torch.device("cpu")


def attend_together(cases: list[Case], chunks: list[bool], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Every case's ``[1, n, n_heads, head_dim]`` from one call; the blocks of all lie in one arena."""
    arenas = [case.tensors() for case in cases]
    n_blocks = [len(k) // BLOCK for _, k, _ in arenas]
    arena = KVArena(1, sum(n_blocks), BLOCK, cases[0].n_kv_heads, HEAD_DIM, dtype, CPU)
    layer, upload = arena.layer(0), Upload(CPU)
    layer.keys.copy_(torch.cat([k for _, k, _ in arenas]))
    layer.values.copy_(torch.cat([v for _, _, v in arenas]))
    shares: list[Share] = []
    rows: list[int] = []
    for i, (case, is_chunk) in enumerate(zip(cases, chunks, strict=True)):
        table = BlockTable(BLOCK)
        table.extend([block + sum(n_blocks[:i]) for block in case.table().blocks])
        visible = None if case.tree.is_chain else case.tree.ancestor_mask()
        shares.append(Share(case.n_cached, case.depths, visible, is_chunk and visible is None, table))
        rows += table.row_numbers(case.n_cached, case.n_cached + len(case.depths)).tolist()
    windows = {case.window for case in cases} | {None}
    batches = make_batches(shares, windows, upload)
    upload.send()
    q = torch.cat([q for q, _, _ in arenas], dim=2).to(dtype)
    own = (layer.read_keys[:, :, rows], layer.read_values[:, :, rows])
    out = attend_batches(batches, q, own, layer, 0.3, cases[0].window)
    assert out.dtype == dtype
    return [*torch.split(out, [len(case.depths) for case in cases], dim=1)]


@given(st.lists(st.tuples(CASES, st.booleans()), min_size=1, max_size=5), st.sampled_from([1, 60, 1 << 18]))
def test_sequences_together_equal_the_definition(drawn: list[tuple[Case, bool]], padded: int) -> None:
    """However trees are divided into batches."""
    first = drawn[0][0]
    shape = {"groups": first.groups, "n_kv_heads": first.n_kv_heads, "window": first.window}
    cases = [replace(case, **shape) for case, _ in drawn]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_batches, "PADDED", padded)
        patch.setattr(attention_batches, "LONG_CHAIN", padded // 20)
        outs = attend_together(cases, [is_chunk for _, is_chunk in drawn])
    for case, out in zip(cases, outs, strict=True):
        assert torch.allclose(out.double(), case.by_hand(), atol=1e-5)


def test_a_tree_in_bf16_is_as_near_to_the_truth_as_a_plain_step() -> None:
    """Scores rounded to bf16 would make the error of this tree six times as large as a plain step's."""

    def error(tree: TokenTree) -> float:
        """Root mean square over a dozen sequences."""
        squares = []
        for seed in range(12):
            case = Case(20, tree, 4, 2, None, contiguous=True, seed=seed)
            q, k, v = (tensor.bfloat16().float() for tensor in case.tensors())
            sharp = (q * 16, k, v)  # attention of trained models is peaked
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Case, "tensors", lambda _, dtype=torch.float32, own=sharp: [x.to(dtype) for x in own])
                difference = attend_together([case], [False], torch.bfloat16)[0].double() - case.by_hand()
            squares.append(float(difference.square().mean()))
        return sum(squares) ** 0.5

    deep = TokenTree([*range(5, 69)], [max(-1, node - 2) for node in range(64)])
    assert error(deep) < 2 * error(EMPTY_TREE)
