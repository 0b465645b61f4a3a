"""Checks that this device's kernels are right, and for ``exact`` repeatable, on random data of a model's own sizes.

It runs before weights are read: about 2 seconds on a GPU once kernels are compiled. Oracles are attention in fp64 and
Hugging Face's layer in fp32; for ``exact``, outputs of different steps are compared bit by bit.
"""

from __future__ import annotations

import copy
import gc
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engine.attention.oracle import oracle_attention
from engine.cuda.executor import Executor
from engine.cuda.kernels.attention import Heads
from engine.cuda.kernels.gemm import ROW_TILES
from engine.cuda.layer import StepOnDevice, attended
from engine.cuda.plan.items import PathWork
from engine.cuda.plan.layout import BUCKETS, PARTIAL_BYTES, SPLIT
from engine.cuda.plan.plan import PlanShape, make_plan
from engine.cuda.planned_step import PlannedStep
from engine.cuda.products import LibraryProducts, Products, TreeProducts
from engine.cuda.weights import pack_layers
from engine.errors import ConfigError, SpectraError
from engine.kv.arena import BlockTable, KVArena, KVLayer
from engine.model.ranges import LayerRange
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.tree import TokenTree
from engine.upload import Upload

logger = logging.getLogger(__name__)

BLOCK = 64  # slots
ROWS = BUCKETS[-1]  # of the longest step: all tiles and programs of recorded steps are tested
FIXED_TILE = 64  # rows, where products of different tiles disagree
TREE = TokenTree([0] * 8, [-1, 0, -1, 2, 2, 4, 0, 6])  # the path of nodes 2, 4 and 5 lies among others
CHAIN = TokenTree([0] * 8, [*range(-1, 7)])
N = 9  # rows of either, and of its root
PATH = [0, 3, 5, 6]  # rows of the path, beginning with the root
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
    kernel_fault, order_fault, row_tile = _find_faults(models, is_exact)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # the target's weights need this memory
    return Verdict(kernel_fault, order_fault, row_tile, time.monotonic() - began)


def _find_faults(models: Iterable[Any], is_exact: bool) -> tuple[str, str, int | None]:
    """The first three fields of a verdict."""
    order_fault, tiles = "", [None, FIXED_TILE]
    try:
        for model in models:
            test = _LayerTest(model)
            if kernel_fault := test.attention_fault() or test.layer_fault(LibraryProducts()):
                return kernel_fault, "", None
            while is_exact and tiles and (fault := _fault_of_order(test, tiles[0])):
                order_fault = fault
                del tiles[0]
    except torch.AcceleratorError as error:
        raise ConfigError(
            f"the self-test broke the device: {error}; numerics layers needs no kernels of ours"
        ) from error
    except Exception as error:  # such as a kernel that this device cannot run
        return _text_of(error), "", None
    return ("", "", tiles[0]) if tiles else ("", order_fault, None)


def _fault_of_order(test: _LayerTest, row_tile: int | None) -> str:
    """What is wrong with exact products, errors of their kernels included; "": nothing."""
    try:
        return test.order_fault(TreeProducts(row_tile))
    except torch.AcceleratorError:
        raise
    except Exception as error:
        return _text_of(error)


def _text_of(error: Exception) -> str:
    logger.debug("the self-test failed", exc_info=error)
    return str(error) if isinstance(error, SpectraError) else f"{type(error).__name__}: {error}"


class _LayerTest:
    """One layer: by an executor, and by its modules in fp32."""

    def __init__(self, model: Any) -> None:
        spec = read_spec(model.config, ())
        self._wide = copy.deepcopy(model).float().model
        self._wide.config._attn_implementation, self._wide.norm = "eager", nn.Identity()
        self._shard = ModelShard(model, spec, LayerRange(0, 1, 1), 2 * ROWS)
        self._heads = pack_layers(self._shard)[0].heads
        self._generator = torch.Generator(self._shard.device).manual_seed(1)
        self._text = self._random(ROWS, spec.hidden_size)

    @torch.inference_mode()
    def attention_fault(self) -> str:
        """What is wrong with attention after prefixes of several splits, one split, and two tokens; "": nothing."""
        heads, trees, prefixes = self._heads, (TREE, CHAIN, TREE), (2 * SPLIT + 37, SPLIT - 9, 2)
        prefixes = (prefixes[0] + (heads.window or 0), *prefixes[1:])
        arena, tables = self._arena([n + N for n in prefixes])
        for part in (arena.layer(0).keys, arena.layer(0).values):
            part.copy_(self._random(*part.shape))
        plan = make_plan([*map(_work, prefixes, trees, tables)], self._plan_shape(arena))
        query = self._random(plan.layout.n_rows, heads.n_heads * heads.head_dim)
        with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]  # launches go to the current device
            step = StepOnDevice.of(plan, torch.from_numpy(plan.ints).to(query.device), heads, PARTIAL_BYTES)
            found = attended(query, arena.layer(0), step, heads)[: plan.n_rows]
        expected = [
            _expected(rows, arena.layer(0), heads, n_cached, tree, table)
            for rows, n_cached, tree, table in zip(
                torch.split(query[: plan.n_rows], N), prefixes, trees, tables, strict=True
            )
        ]
        return _difference("attention", found, torch.cat(expected))

    def layer_fault(self, products: Products) -> str:
        """What is wrong with the outputs of the layer; "": nothing."""
        return self._difference(self._run(self._executor(products), [ROWS]))

    def order_fault(self, products: Products) -> str:
        """What is wrong with the outputs of the layer, or which step changes their bits; "": nothing."""
        executor, last = self._executor(products), len(PATH)
        whole = self._run(executor, [ROWS])
        if fault := self._difference(whole):
            return fault
        steps = [[n] for n in ROW_TILES if n < ROWS] + [[ROWS - last, *(1,) * last]]
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
        arena, [table] = self._arena([ROWS + N])
        steps, outputs, first = [*torch.split(self._text[: sum(sizes)], [*sizes])], list[Tensor](), 0
        if ends_in_tree:
            steps.append(self._text[:N].clone())
            steps[-1][PATH] = self._text[-len(PATH) :]
        for rows in steps:
            is_tree, upload = ends_in_tree and rows is steps[-1], Upload(rows.device)
            work = _work(first, TREE, table) if is_tree else PathWork(first, len(rows), None, table.blocks)
            plan = make_plan([work], self._plan_shape(arena), [0] * len(rows))
            step = PlannedStep(arena, [], None, None, plan=plan, ints=upload.add(plan.ints, np.int32))
            upload.send()
            found = executor.run(rows[None], step)[0][0]
            outputs.append(found[PATH] if is_tree else found)
            first += len(rows)
        return torch.cat(outputs)

    @torch.inference_mode()
    def _difference(self, found: Tensor) -> str:
        """From the outputs of Hugging Face's layer."""
        return _difference("a layer", found, self._wide(inputs_embeds=self._text[None].float()).last_hidden_state[0])

    def _arena(self, lengths: Sequence[int]) -> tuple[KVArena, list[BlockTable]]:
        """A cache for sequences of these lengths, whose blocks descend; the last block belongs to none."""
        counts, heads = [-(-n // BLOCK) for n in lengths], self._heads
        shape = (1, sum(counts) + 1, BLOCK, heads.n_kv_heads, heads.head_dim)
        free, tables = [*range(sum(counts))], [BlockTable(BLOCK) for _ in counts]
        for table, count in zip(tables, counts, strict=True):
            table.extend(free.pop() for _ in range(count))
        return KVArena(*shape, self._shard.dtype, self._shard.device), tables

    def _plan_shape(self, arena: KVArena) -> PlanShape:
        return PlanShape.of(self._shard.windows, self._shard.spec.groups, BLOCK, arena.n_rows - 1, SPLIT)

    def _random(self, *shape: int) -> Tensor:
        made = torch.randn(shape, generator=self._generator, device=self._generator.device)
        return made.to(self._shard.dtype)


def _work(n_cached: int, tree: TokenTree, table: BlockTable) -> PathWork:
    return PathWork(n_cached, N, None if tree is CHAIN else tree.parents, table.blocks)


def _expected(query: Tensor, layer: KVLayer, heads: Heads, n_cached: int, tree: TokenTree, table: BlockTable) -> Tensor:
    """Return the oracle's attention of a root and its tree, ``[N, n_heads * head_dim]``."""
    rows, own = table.rows(0, n_cached + N, query.device), ([0, *tree.depths], tree.ancestor_mask())
    by_head = query.view(N, heads.n_heads, heads.head_dim)
    found = oracle_attention(by_head, layer.keys[rows], layer.values[rows], *own, heads.scale, heads.window)
    return found.flatten(1)


def _difference(name: str, found: Tensor, expected: Tensor) -> str:
    """By how much values differ where it is more than rounding; "": they do not."""
    error = float((found.double() - expected).abs().max() / expected.abs().max())
    if error <= TOLERANCES[found.dtype]:  # which no NaN is
        return ""
    return f"{name} differs from the oracle by {error:.2g} of the largest value"
