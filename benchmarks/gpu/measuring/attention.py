"""Attention over a paged cache in sizes of production: against fp64, and its time by stages and programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, product
from unittest import mock

import torch
from torch import Tensor

from benchmarks.gpu.measuring.clock import measure_throughput
from benchmarks.gpu.measuring.models import BLOCK
from benchmarks.gpu.measuring.products import relative_error
from benchmarks.gpu.measuring.steps import make_bushy_tree
from benchmarks.gpu.setting import GpuSetting, Row
from engine.attention.oracle import oracle_attention
from engine.cuda.kernels import combine as merging
from engine.cuda.kernels.attention import Partials, attend
from engine.cuda.kernels.combine import combine
from engine.cuda.occupancy import get_card
from engine.cuda.operands import Heads
from engine.cuda.plan.items import PathWork
from engine.cuda.plan.plan import PlanShape, make_plan
from engine.tree import TokenTree

HEADS = {
    "8B": Heads(32, 8, 128, 128**-0.5),
    "70B": Heads(64, 8, 128, 128**-0.5),
    "1B": Heads(32, 8, 64, 0.125),
    "Qwen2.5 7B": Heads(28, 4, 128, 128**-0.5),
    "Gemma 3 4B, window": Heads(8, 4, 256, 0.0625, window=1024),
    "Gemma 2 9B, window, cap": Heads(16, 8, 256, 0.0625, window=4096, softcap=50.0),
}
# (committed tokens, rows, whether they are a tree): trees and chains before, at and after borders of splits of 256
WORKS = ((0, 40, True), (253, 64, True), (512, 1, False), (300, 21, False), (2047, 16, True), (5000, 64, True))
TINY_HEADS = {"grouped": Heads(4, 2, 16, 0.25), "window": Heads(4, 2, 16, 0.25, window=40, softcap=5.0)}
TINY_WORKS = ((0, 5, True), (253, 9, True), (300, 3, False))
HUGE = 3e38
ALLOWED = {torch.float32: 200.0, torch.bfloat16: 4.0}  # steps of the dtype at a row's largest value
CONTEXTS, STEPS = (2048, 8192, 32768), ((1, 1), (1, 64), (32, 1))  # sequences, rows of each
STAGES, WAVES, MERGE_STAGES = (2, 5), (1, 2, 4), (1, 4)  # waves: programs for each multiprocessor
READ_BYTES = 256 << 20  # of keys and values that are read in turn, so that no cache holds them


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """A step's rows and a cache."""

    works: Sequence[PathWork]
    heads: Heads
    q: Tensor  # [n_rows, n_heads, head_dim]
    keys: Tensor  # [n_slots, n_kv_heads, head_dim]
    values: Tensor

    def prepare(self) -> tuple[Callable[..., None], Callable[[], None], Tensor]:
        """Return what attends (keys, values, programs, stages), what merges, and the output; its memory is NaN."""
        heads, every, last = self.heads, range(self.heads.n_kv_heads), len(self.keys) - 1
        plan = make_plan(self.works, PlanShape.of({heads.window}, heads.groups, BLOCK, last))
        q = self.q.new_full((plan.layout.n_rows, heads.n_heads * heads.head_dim), torch.nan)
        q[: plan.n_rows] = self.q.flatten(1)
        out, ints = torch.full_like(q, torch.nan), torch.from_numpy(plan.ints).to(q.device)
        partials = Partials.empty(plan.n_partials, heads.n_heads, heads.head_dim, q.device)
        for memory in (partials.sums, partials.largest, partials.weights):
            memory.fill_(torch.nan)

        def attend_all(keys: Tensor, values: Tensor, programs: int, stages: int | None = None) -> None:
            attend(q, keys, values, ints, plan.layout, heads, every, partials, programs, stages)

        return attend_all, partial(combine, partials, ints, plan.layout, heads, every, out), out

    def run(self, values: Tensor) -> Tensor:
        """Return attention ``[n_rows, n_heads, head_dim]`` over other values."""
        attend_all, merge, out = self.prepare()
        attend_all(self.keys, values, 16)
        merge()
        return out[: len(self.q)].view(self.q.shape)

    def find_slots(self, work: PathWork) -> Tensor:
        """Return the slots of a work's text and rows, in order."""
        blocks, place = torch.as_tensor(work.blocks), torch.arange(work.n_cached + work.n_rows)
        return blocks[place // BLOCK] * BLOCK + place % BLOCK

    def ask_oracle(self, work: PathWork, q: Tensor) -> Tensor:
        """Return the oracle's attention of a work, in fp64."""
        heads, n, slots = self.heads, work.n_rows, self.find_slots(work)
        tree = TokenTree([0] * (n - 1), list(range(-1, n - 2) if work.parents is None else work.parents))
        rows, own = (q, self.keys[slots], self.values[slots]), ([0, *tree.depths], tree.ancestor_mask())
        return oracle_attention(*rows, *own, heads.scale, heads.window, heads.softcap)


def make_case(setting: GpuSetting, heads: Heads, sizes: Sequence[tuple[int, int, bool]]) -> AttentionCase:
    """Return a case with random numbers in the slots of its works, whose blocks are shuffled, and NaN in all others."""
    random = torch.Generator(setting.device).manual_seed(0)
    needed = [-(-(n_cached + n_rows) // BLOCK) for n_cached, n_rows, _ in sizes]
    blocks = torch.split(torch.randperm(sum(needed), generator=torch.Generator().manual_seed(0)), needed)
    works = [
        PathWork(n_cached, n_rows, make_bushy_tree(n_rows - 1, 9).parents if is_tree else None, own.tolist())
        for (n_cached, n_rows, is_tree), own in zip(sizes, blocks, strict=True)
    ]
    n_slots, n_rows, dim = sum(needed) * BLOCK + 1, sum(work.n_rows for work in works), heads.head_dim
    shapes = (n_rows, heads.n_heads, dim), *[(n_slots, heads.n_kv_heads, dim)] * 2
    empty = (torch.empty(shape, dtype=setting.dtype, device=setting.device) for shape in shapes)
    case = AttentionCase(works, heads, *(one.normal_(generator=random) for one in empty))
    is_free = torch.ones(n_slots, dtype=torch.bool, device=setting.device)
    is_free[torch.cat([case.find_slots(work) for work in works]).to(setting.device)] = False
    case.keys[is_free] = case.values[is_free] = torch.nan
    return case


def check_attention(setting: GpuSetting) -> Iterator[Row]:
    """Yield a row for each kind of heads: its error against fp64, and rows that a value after their end changes."""
    allowed = ALLOWED[setting.dtype]
    for name, heads in (TINY_HEADS if setting.is_tiny else HEADS).items():
        case = make_case(setting, heads, TINY_WORKS if setting.is_tiny else WORKS)
        queries = torch.split(case.q, [work.n_rows for work in case.works])
        out, expected = case.run(case.values), torch.cat(list(map(case.ask_oracle, case.works, queries)))
        error = relative_error(out.flatten(1), expected.flatten(1))
        nans, changed = int(out.isnan().sum()), _count_changed(case)
        yield {
            "heads": name, "rows": len(out), "error": error, "allowed error": allowed, "NaNs": nans,
            "rows that a later value changes": changed, "ok": error <= allowed and not nans and not changed,
        }  # fmt: skip


def _count_changed(case: AttentionCase) -> int:
    """Count rows, but the last of each work, that change with the work's last value, which kernels multiply by 0."""
    lasts, outs = torch.stack([case.find_slots(work)[-1] for work in case.works]), list[Tensor]()
    for value in (0.0, HUGE):
        values = case.values.clone()
        values[lasts] = value
        outs.append(case.run(values))
    differs = (outs[0] != outs[1]).flatten(1).any(1)
    differs[torch.tensor([work.n_rows for work in case.works]).cumsum(0) - 1] = False
    return int(differs.sum())


def tune_attention(setting: GpuSetting) -> Iterator[Row]:
    """Yield the time of attention, and the speed at which it reads keys and values, by stages and programs."""
    heads = TINY_HEADS["grouped"] if setting.is_tiny else HEADS["8B"]
    processors = 4 if setting.is_tiny else get_card(setting.device).multiprocessors
    for context, (sequences, rows) in product((300,), ((1, 3),)) if setting.is_tiny else product(CONTEXTS, STEPS):
        case = make_case(setting, heads, [(context, rows, rows > 1)] * sequences)
        attend_all, merge, _ = case.prepare()
        n_bytes = case.keys.nbytes + case.values.nbytes
        n = 1 if setting.is_tiny else -(-READ_BYTES // n_bytes)
        caches = [(case.keys.clone(), case.values.clone()) for _ in range(n)]
        step: Row = {"step": f"{sequences} x {rows} rows", "context": context}
        for stages, waves in product(STAGES, WAVES):
            programs = max(1, waves * processors // heads.n_kv_heads)
            turns = cycle(caches)
            seconds = measure_throughput(setting, lambda: attend_all(*next(turns), programs, stages), n)  # noqa: B023
            choice = f"attend, {stages} stages, {programs * heads.n_kv_heads} programs"
            yield {**step, "choice": choice, "us": seconds * 1e6, "GB/s": n_bytes / seconds / 1e9}
        for stages in MERGE_STAGES:
            with mock.patch.object(merging, "_STAGES", stages):
                seconds = measure_throughput(setting, merge, n)
            yield {**step, "choice": f"combine, {stages} stages", "us": seconds * 1e6, "GB/s": None}
