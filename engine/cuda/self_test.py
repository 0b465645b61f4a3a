"""Checks that this device's kernels are right, and for ``exact`` repeatable, on random data of a model's own sizes.

It runs before weights are read: about 2 seconds on a GPU once kernels are compiled. Oracles are Hugging Face's layer in
fp32, and attention by plain matrix products in fp32; for ``exact``, outputs of different steps are compared bit by bit.
"""

from __future__ import annotations

import copy
import gc
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.attention.hook import PackedStep, attend
from engine.attention.packing import Share, pack_shares
from engine.cuda.executor import Executor
from engine.cuda.kernels.gemm import ROW_TILES
from engine.cuda.layer import StepOnDevice, attended
from engine.cuda.plan.items import PathWork
from engine.cuda.plan.layout import PARTIAL_BYTES, SPLIT
from engine.cuda.plan.plan import PlanShape, make_plan
from engine.cuda.planned_step import PlannedStep
from engine.cuda.products import LibraryProducts, Products, TreeProducts
from engine.cuda.weights import pack_layers
from engine.errors import SpectraError
from engine.kv.arena import BlockTable, KVArena
from engine.model.ranges import LayerRange
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.tree import TokenTree
from engine.upload import Upload

logger = logging.getLogger(__name__)

BLOCK = 64  # slots
ROWS = ROW_TILES[-1]  # of the longest step
FIXED_TILE = 64  # rows, where products of different tiles disagree
TREE = [-1, 0, -1, 2, 2, 4, 0, 6]  # parents of its nodes: the path of nodes 2, 4 and 5 lies among others
PATH = [0, 3, 5, 6]  # its rows, beginning with the root
TOLERANCES = {torch.float32: 1e-4, torch.float16: 8e-3, torch.bfloat16: 3e-2}  # of the largest value


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the self-test found.

    Args:
        kernel_fault: why no executor can run; "": its kernels are right.
        order_fault: why ``exact`` cannot run; "": its products are right, and a row's bits depend on its text alone.
        row_tile: rows that exact products must multiply at once; None: tiles of all sizes agree.
        seconds: that it took.
    """

    kernel_fault: str = ""
    order_fault: str = ""
    row_tile: int | None = None
    seconds: float = 0.0


def self_test(models: Iterable[Any], is_exact: bool) -> Verdict:
    """The verdict on kernels for some layers.

    Args:
        models: a seeded causal LM for each type of layer, of one layer and on the device.
        is_exact: whether to check what ``exact`` alone needs.
    """
    began = time.monotonic()
    kernel_fault, order_fault, tiles = "", "", [None, FIXED_TILE]
    try:
        for model in models:
            test = _LayerTest(model)
            kernel_fault = test.attention_fault() or test.layer_fault(LibraryProducts())
            if kernel_fault:
                break
            while is_exact and tiles and (fault := test.order_fault(TreeProducts(tiles[0]))):
                order_fault = fault
                del tiles[0]
    except Exception as error:  # such as a kernel that this device cannot run
        logger.debug("the self-test failed", exc_info=error)
        kernel_fault = str(error) if isinstance(error, SpectraError) else f"{type(error).__name__}: {error}"
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # the target's weights need this memory
    seconds = time.monotonic() - began
    return Verdict(kernel_fault, "", tiles[0], seconds) if tiles else Verdict(kernel_fault, order_fault, None, seconds)


class _LayerTest:
    """One layer: by an executor, and by its modules in fp32."""

    def __init__(self, model: Any) -> None:
        whole, spec = LayerRange(0, 1, 1), read_spec(model.config, ())
        wide = copy.deepcopy(model).float()
        self._shard, self._wide = (ModelShard(one, spec, whole, 2 * ROWS) for one in (model, wide))
        self._heads = pack_layers(self._shard)[0].heads
        self._generator = torch.Generator(self._shard.device).manual_seed(1)
        self._text = self._random(ROWS, spec.hidden_size)

    @torch.inference_mode()
    def attention_fault(self) -> str:
        """What is wrong with trees and a chain after prefixes of several splits, one split, and two tokens."""
        heads, trees, n = self._heads, (TREE, None, TREE), len(TREE) + 1
        prefixes = (2 * SPLIT + 37 + (heads.window or 0), SPLIT - 9, 2)
        arena, tables = _arena(self._shard, [prefix + n for prefix in prefixes])
        for part in (arena.layer(0).keys, arena.layer(0).values):
            part.copy_(self._random(*part.shape))
        plan = make_plan([*map(_work, prefixes, (n,) * 3, trees, tables)], _plan_shape(self._shard, arena))
        query = self._random(plan.layout.n_rows, heads.n_heads * heads.head_dim)
        with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]  # launches go to the current device
            step = StepOnDevice.of(plan, torch.from_numpy(plan.ints).to(query.device), heads, PARTIAL_BYTES)
            found = attended(query, arena.layer(0), step, heads)[: plan.n_rows]
        packed = _packed([*map(_share, prefixes, (n,) * 3, trees, tables)], arena, self._shard)
        by_head = query[: plan.n_rows].view(1, plan.n_rows, heads.n_heads, -1).transpose(1, 2)
        expected = attend(packed, by_head, arena.layer(0), heads.scale, heads.window)
        return _difference("attention", found, expected.reshape(found.shape))

    def layer_fault(self, products: Products) -> str:
        """What is wrong with the outputs of the layer."""
        return _difference("a layer", self._run(self._executor(products), [ROWS]), self._expected)

    def order_fault(self, products: Products) -> str:
        """What is wrong with the outputs of the layer, or which step changes their bits."""
        executor, last = self._executor(products), len(PATH)
        whole = self._run(executor, [ROWS])
        if fault := _difference("a layer", whole, self._expected):
            return fault
        steps = [[n] for n in ROW_TILES[:-1]] + [[ROWS - last, *(1,) * last]]
        for sizes, ends_in_tree in [*((sizes, False) for sizes in steps), ([ROWS - last], True)]:
            found = self._run(executor, sizes, ends_in_tree)
            if not torch.equal(found, whole[: len(found)]):
                name = "a tree" if ends_in_tree else f"steps of {', '.join(map(str, sizes))} rows"
                return f"rows have other bits in {name} than in a step of {ROWS} rows"
        return ""

    def _executor(self, products: Products) -> Executor:
        return Executor(self._shard, products, records=False)

    @torch.inference_mode()
    def _run(self, executor: Executor, sizes: Sequence[int], ends_in_tree: bool = False) -> Tensor:
        """Outputs ``[n, hidden]`` of the text in steps of these sizes, its last rows being a path of a tree."""
        arena, [table] = _arena(self._shard, [ROWS + len(TREE)])
        steps, outputs, first = [*torch.split(self._text[: sum(sizes)], [*sizes])], list[Tensor](), 0
        if ends_in_tree:
            steps.append(self._text[: len(TREE) + 1].clone())
            steps[-1][PATH] = self._text[-len(PATH) :]
        for rows in steps:
            is_tree, upload = ends_in_tree and rows is steps[-1], Upload(rows.device)
            work = _work(first, len(rows), TREE if is_tree else None, table)
            plan = make_plan([work], _plan_shape(self._shard, arena), [0] * len(rows))
            step = PlannedStep(arena, [], None, None, plan=plan, ints=upload.add(plan.ints, np.int32))
            upload.send()
            found = executor.run(rows[None], step)[0][0]
            outputs.append(found[PATH] if is_tree else found)
            first += len(rows)
        return torch.cat(outputs)

    @cached_property
    @torch.inference_mode()
    def _expected(self) -> Tensor:
        """Outputs of the text by the layer's modules, fp32 ``[ROWS, hidden]``."""
        arena, [table] = _arena(self._wide, [ROWS])
        packed = _packed([_share(0, ROWS, None, table)], arena, self._wide)
        positions = torch.arange(ROWS, device=self._text.device)
        return self._wide.run(self._text[None].float(), positions, packed)[0][0]

    def _random(self, *shape: int) -> Tensor:
        made = torch.randn(shape, generator=self._generator, device=self._generator.device)
        return made.to(self._shard.dtype)


def _arena(shard: ModelShard, lengths: Sequence[int]) -> tuple[KVArena, list[BlockTable]]:
    """A cache for one layer of sequences of these lengths, whose blocks descend; its last block is nobody's."""
    spec, counts = shard.spec, [-(-n // BLOCK) for n in lengths]
    arena = KVArena(1, sum(counts) + 1, BLOCK, spec.n_kv_heads, spec.head_dim, shard.dtype, shard.device)
    free, tables = [*range(sum(counts))], [BlockTable(BLOCK) for _ in counts]
    for table, count in zip(tables, counts, strict=True):
        table.extend(free.pop() for _ in range(count))
    return arena, tables


def _plan_shape(shard: ModelShard, arena: KVArena) -> PlanShape:
    return PlanShape.of(shard.windows, shard.spec.groups, BLOCK, arena.n_rows - 1, SPLIT)


def _work(n_cached: int, n_rows: int, parents: list[int] | None, table: BlockTable) -> PathWork:
    return PathWork(n_cached, n_rows, parents, table.blocks)


def _share(n_cached: int, n_rows: int, parents: list[int] | None, table: BlockTable) -> Share:
    if parents is None:
        return Share(n_cached, [*range(n_rows)], None, table)
    tree = TokenTree([0] * len(parents), parents)
    return Share(n_cached, [0, *tree.depths], tree.ancestor_mask(), table)


def _packed(shares: Sequence[Share], arena: KVArena, shard: ModelShard) -> PackedStep:
    """A step of these rows, for the oracle."""
    upload = Upload(shard.device)
    packed = pack_shares(shares, arena, upload, shard.spec.groups, reference=True)
    upload.send()
    return packed


def _difference(name: str, found: Tensor, expected: Tensor) -> str:
    """By how much values differ where it is more than rounding; "": they do not."""
    error = float((found.float() - expected.float()).abs().max() / expected.float().abs().max())
    if error <= TOLERANCES[found.dtype]:  # which no NaN is
        return ""
    return f"{name} differs from the oracle by {error:.2g} of the largest value"
