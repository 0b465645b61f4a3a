"""Attention over paged keys in which the arithmetic of a row depends on that row's text alone.

Keys are read by their position in the text: in splits of a fixed number of positions, each split in tiles. ``attend``
writes one partial softmax for every row and split. ``combine`` merges the partials of a row from the first split to
the last. So a row of a tree computes the same sums in the same order as the same row in plain decoding: keys that a
row does not see have weight exactly 0.

A plan on the device (``engine.cuda.plan``) lists items: rows and the keys of one split. Programs take items until none
is left, so the launch does not depend on the step. The number of programs and of pipeline stages changes no order of
sums, hence no bit. FlashDecoding (Dao et al., 2023) merges splits by their log-sum-exp; splits at fixed positions make
the sums the same for every step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.kernels.launch import await_previous, launch_options
from engine.cuda.occupancy import SMALL_HEAD, count_pipeline_stages
from engine.cuda.operands import Heads
from engine.cuda.plan.layout import HEADER, ITEM, TILE, PlanLayout


@dataclass(frozen=True, slots=True)
class Partials:
    """Partial softmaxes in fp32 that ``attend`` writes and ``combine`` reads, for the query heads of some key heads."""

    sums: Tensor  # [n_partials, n_heads, head_dim], weighted values
    largest: Tensor  # [n_partials, n_heads], scores times log2(e)
    weights: Tensor  # [n_partials, n_heads], sums of weights

    @classmethod
    def empty(cls, n_partials: int, n_heads: int, head_dim: int, device: torch.device) -> Partials:
        """Return uninitialised memory."""
        shapes = (n_partials, n_heads, head_dim), (n_partials, n_heads), (n_partials, n_heads)
        return cls(*(torch.empty(shape, dtype=torch.float32, device=device) for shape in shapes))

    @staticmethod
    def count_bytes(n_partials: int, n_heads: int, head_dim: int) -> int:
        """Return the bytes that ``empty`` allocates."""
        return 4 * n_partials * n_heads * (head_dim + 2)


@triton.jit  # type: ignore[untyped-decorator]
def _scores(  # type: ignore[no-untyped-def]  # Triton resolves annotations, and knows only its own
    query, key, at, there, position, scale, softcap, window: tl.constexpr, capped: tl.constexpr
):
    """Scores times log2(e) of rows at ``position`` and keys at ``at``; -inf where a row does not see a key."""
    score = tl.dot(query, key, input_precision="ieee") * scale  # which bf16 ignores
    if capped:  # tanh by exp2, which is everywhere; 2.885... is 2 log2(e)
        score = (1.0 - 2.0 / (1.0 + tl.exp2(score / softcap * 2.8853900817779268))) * softcap
        score = score * 1.4426950408889634
    seen = there[None, :] & (at[None, :] <= position[:, None])
    if window > 0:
        seen = seen & (at[None, :] > position[:, None] - window)
    return tl.where(seen, score, float("-inf"))


@triton.jit
def _with_tile(total, most, weight, score, value):  # type: ignore[no-untyped-def]
    """Weighted values, largest score and sum of weights of a partial softmax, with one more tile of keys."""
    more = tl.maximum(most, tl.max(score, 1))
    safe = tl.where(more == float("-inf"), 0.0, more)  # a row may see nothing of a tile
    share = tl.exp2(score - safe[:, None])
    before = tl.exp2(most - safe)
    total = total * before[:, None] + tl.dot(share.to(value.dtype), value, input_precision="ieee")
    return total, more, weight * before + tl.sum(share, 1)


@triton.jit(do_not_specialize=["n_rows", "first_kv_head"])  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    q,  # [n_rows, n_heads, head_dim]
    keys,  # [n_slots, n_kv_heads, head_dim]
    values,
    plan,
    sums,
    largest,
    weights,
    scale,  # times log2(e) unless there is a cap
    softcap,
    n_rows,  # of the step's bucket: where its rows' arrays lie in the plan
    first_kv_head,  # of the launch
    place: tl.constexpr,  # of the window in the plan
    window: tl.constexpr,  # 0: none
    capped: tl.constexpr,
    n_heads: tl.constexpr,
    n_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    block_d: tl.constexpr,
    split_size: tl.constexpr,
    tile: tl.constexpr,
    block_m: tl.constexpr,
    header_ints: tl.constexpr,
    item_ints: tl.constexpr,
    overlaps: tl.constexpr,
):
    await_previous(overlaps)
    groups: tl.constexpr = n_heads // n_kv_heads
    kv_head = first_kv_head + tl.program_id(0)  # first in the grid: programs that start together take all key heads
    part_heads = tl.num_programs(0) * groups  # that the partials have
    n_items = tl.load(plan + place * 2)
    items = plan + tl.load(plan + place * 2 + 1)
    positions = plan + header_ints
    firsts = plan + header_ints + (2 + place) * n_rows
    member = tl.arange(0, block_m) // groups  # of a tile's rows: which of the item's, and which head of the group
    in_group = tl.arange(0, block_m) % groups
    head = kv_head * groups + in_group
    dims = tl.arange(0, block_d)
    in_head = dims < head_dim
    for number in tl.range(tl.program_id(1), n_items, tl.num_programs(1)):
        item = items + number * item_ints
        members = plan + tl.load(item)
        inside = member < tl.load(item + 1)
        table = plan + tl.load(item + 2)
        base = tl.load(item + 3)
        unit = tl.load(item + 4)
        split = tl.load(item + 5)
        end = tl.load(item + 6)
        row = tl.load(members + member, mask=inside, other=0)
        position = tl.load(positions + row, mask=inside, other=0)
        q_at = (row * n_heads + head)[:, None] * head_dim + dims[None, :]
        query = tl.load(q + q_at, mask=inside[:, None] & in_head[None, :], other=0.0)
        total = tl.zeros((block_m, block_d), tl.float32)
        most = tl.full((block_m,), float("-inf"), tl.float32)
        weight = tl.zeros((block_m,), tl.float32)
        for first in tl.range(split * split_size, tl.minimum(end, (split + 1) * split_size), tile):
            at = first + tl.arange(0, tile)
            there = (at < end) & (at >= base)
            entry = tl.load(table + (at - base) // unit, mask=there, other=0)
            slot = (entry * unit + (at - base) % unit).to(tl.int64)
            kv_at = (slot * n_kv_heads + kv_head) * head_dim
            key = tl.load(keys + kv_at[None, :] + dims[:, None], mask=there[None, :] & in_head[:, None], other=0.0)
            score = _scores(query, key, at, there, position, scale, softcap, window, capped)
            value = tl.load(values + kv_at[:, None] + dims[None, :], mask=there[:, None] & in_head[None, :], other=0.0)
            total, most, weight = _with_tile(total, most, weight, score, value)
        skipped = 0
        if window > 0:
            skipped = tl.maximum(position - window + 1, 0) // split_size
        # An item also lists rows whose window has passed this split, for the sake of other rows: not stored.
        kept = inside & (split >= skipped) & (split * split_size <= position)
        partial = (tl.load(firsts + row, mask=inside, other=0) + split - skipped).to(tl.int64) * part_heads
        partial += tl.program_id(0) * groups + in_group
        tl.store(sums + partial[:, None] * head_dim + dims[None, :], total, mask=kept[:, None] & in_head[None, :])
        tl.store(largest + partial, most, mask=kept)
        tl.store(weights + partial, weight, mask=kept)


def _tile(block_d: int, dtype: torch.dtype) -> int:
    """Return the keys of a tile: as many as fit the registers with the sums; fp32 needs the most registers."""
    if dtype == torch.float32:
        return 16
    return 32 if block_d > 128 else 64


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: Tensor,
    layout: PlanLayout,
    heads: Heads,
    kv_heads: range,
    into: Partials,
    programs: int,
    stages: int | None = None,
    *,
    overlaps: bool = False,
) -> None:
    """Write the partial attention of every row over every split that it sees.

    Args:
        q: ``[n_rows, n_heads * head_dim]``, rotated; ``n_rows`` is the plan's bucket.
        keys: ``[n_slots, n_kv_heads, head_dim]``, including this step's own.
        values: like ``keys``.
        plan: int32, as ``layout`` describes it.
        layout: of the plan.
        heads: of the layer.
        kv_heads: key heads to attend with.
        into: memory for the plan's partials of these heads.
        programs: share the items, for each key head (``count_attention_programs``).
        stages: of the copy pipeline; None: as many as the device's shared memory holds.
        overlaps: the kernel may start before the previous one ends, and waits for it (``launch_options``).
    """
    capped, block_d = heads.softcap is not None, max(16, triton.next_power_of_2(heads.head_dim))
    tile, head_bytes = min(_tile(block_d, keys.dtype), layout.split), block_d * keys.element_size()
    tensors = q, keys, values, plan, into.sums, into.largest, into.weights
    _attend[(len(kv_heads), programs)](
        *tensors,
        heads.scale * (1.0 if capped else math.log2(math.e)),
        heads.softcap or 1.0,
        layout.n_rows,
        kv_heads.start,
        layout.window_number(heads.window),
        heads.window or 0,
        capped,
        *(heads.n_heads, heads.n_kv_heads, heads.head_dim),
        block_d,
        layout.split,
        *(tile, TILE, HEADER, ITEM),
        overlaps,
        num_stages=stages or count_pipeline_stages(q.device, TILE * head_bytes, tile * head_bytes),
        # With 4 warps, the sums of large heads do not fit the registers.
        **launch_options(4 if block_d <= SMALL_HEAD else 8, overlaps),
    )
