"""Checks that the kernels are right on this device, on random data of a model's own sizes.

It runs before weights are read, and takes about 2 seconds on a GPU once kernels are compiled. It compares attention
with the oracle in fp64, and a layer with Hugging Face's in fp32. For numerics ``exact`` it also compares the outputs of
different steps bit by bit.
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
from engine.cuda.kernels.gemm import ROW_TILES
from engine.cuda.layer import StepOnDevice, attend_step
from engine.cuda.operands import Heads
from engine.cuda.plan.items import PathWork
from engine.cuda.plan.layout import BUCKETS, PARTIAL_BYTES, SPLIT
from engine.cuda.plan.plan import PlanShape, make_plan
from engine.cuda.planned_step import PlannedStep
from engine.cuda.products import Products
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
ROWS = BUCKETS[-1]  # of the longest step, so all tiles and programs of recorded steps are tested
FIXED_TILE = 64  # rows, if products of different tiles disagree
TREE = TokenTree([0] * 8, [-1, 0, -1, 2, 2, 4, 0, 6])  # the path of nodes 2, 4 and 5 lies among others
CHAIN = TokenTree([0] * 8, [*range(-1, 7)])
N = 9  # rows of either tree with its root
PATH = [0, 3, 5, 6]  # rows of the path of ``TREE``, beginning with the root
ROUTER_GAP = 0.05  # between the scores of experts; with a smaller one, rounding may choose another expert
TOLERANCES = {torch.float32: 1e-4, torch.float16: 8e-3, torch.bfloat16: 3e-2}  # of the largest value


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of the self-test.

    Args:
        kernel_fault: why no executor can run; "" if the kernels are right.
        order_fault: why ``exact`` cannot run; "" if its products are right and a row's bits depend on its text alone.
        row_tile: rows that exact products must multiply at once; None: tiles of all sizes agree.
        seconds: duration of the test.
    """

    kernel_fault: str = ""
    order_fault: str = ""
    row_tile: int | None = None
    seconds: float = 0.0


def self_test(models: Iterable[Any], is_exact: bool) -> Verdict:
    """Test the kernels on some layers.

    Args:
        models: a seeded causal LM on the device for each type of layer, each of one layer.
        is_exact: whether to check what ``exact`` alone needs.

    Raises:
        ConfigError: a kernel broke the device.
    """
    began = time.monotonic()
    kernel_fault, order_fault, row_tile = _find_faults(models, is_exact)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # the target's weights need this memory
    return Verdict(kernel_fault, order_fault, row_tile, time.monotonic() - began)


def _find_faults(models: Iterable[Any], is_exact: bool) -> tuple[str, str, int | None]:
    """Return the first three fields of a verdict."""
    order_fault, tiles = "", [None, FIXED_TILE]
    try:
        for model in models:
            test = _LayerTest(model)
            if kernel_fault := test.find_attention_fault() or test.find_layer_fault(Products(by_library=True)):
                return kernel_fault, "", None
            while is_exact and tiles and (fault := _find_order_fault(test, tiles[0])):
                order_fault = fault
                del tiles[0]
    except torch.AcceleratorError as error:
        raise ConfigError(
            f"the self-test broke the device: {error}; numerics layers needs no kernels of ours"
        ) from error
    except Exception as error:  # such as a kernel that this device cannot run
        return _describe_error(error), "", None
    return ("", "", tiles[0]) if tiles else ("", order_fault, None)


def _find_order_fault(test: _LayerTest, row_tile: int | None) -> str:
    """Return the fault of exact products, which may be an error of their kernels, or ""."""
    try:
        return test.find_order_fault(Products(row_tile=row_tile))
    except torch.AcceleratorError:
        raise
    except Exception as error:
        return _describe_error(error)


def _describe_error(error: Exception) -> str:
    logger.debug("the self-test failed", exc_info=error)
    return str(error) if isinstance(error, SpectraError) else f"{type(error).__name__}: {error}"


class _LayerTest:
    """Runs one layer by an executor, and by its modules in fp32; methods return a fault, or ""."""

    def __init__(self, model: Any) -> None:
        spec = read_spec(model.config, ())
        self._wide = copy.deepcopy(model).float().model
        self._wide.config._attn_implementation, self._wide.norm = "eager", nn.Identity()
        self._scores: Tensor | None = None  # of experts, by the last run of ``_wide``
        if spec.n_experts:
            self._wide.layers[0].mlp.gate.register_forward_hook(self._keep_scores)
        self._shard = ModelShard(model, spec, LayerRange(0, 1, 1), 2 * ROWS)
        self._heads = pack_layers(self._shard)[0].heads
        self._generator = torch.Generator(self._shard.device).manual_seed(1)
        self._text = self._make_random(ROWS, spec.hidden_size)

    @torch.inference_mode()
    def find_attention_fault(self) -> str:
        """Compare attention with the oracle's after several splits, after one split, and after two tokens."""
        heads, trees, prefixes = self._heads, (TREE, CHAIN, TREE), (2 * SPLIT + 37, SPLIT - 9, 2)
        prefixes = (prefixes[0] + (heads.window or 0), *prefixes[1:])
        arena, tables = self._make_arena([n + N for n in prefixes])
        layer = arena.layer(0)
        for part in (layer.keys, layer.values):
            part.copy_(self._make_random(*part.shape))
        plan = make_plan([*map(_make_work, prefixes, trees, tables)], self._plan_shape(arena))
        query = self._make_random(plan.layout.n_rows, heads.n_heads * heads.head_dim)
        with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]  # launches go to the current device
            step = StepOnDevice.of(plan, torch.from_numpy(plan.ints).to(query.device), heads, PARTIAL_BYTES)
            found = attend_step(query, layer, step, heads)[: plan.n_rows]
        queries = torch.split(query[: plan.n_rows], N)
        cases = zip(queries, prefixes, trees, tables, strict=True)
        return _compare("attention", found, torch.cat([_attend_by_oracle(layer, heads, *case) for case in cases]))

    def find_layer_fault(self, products: Products) -> str:
        """Compare the layer's outputs with Hugging Face's."""
        return self._compare_layer(self._run(self._executor(products), [ROWS]))

    def find_order_fault(self, products: Products) -> str:
        """Compare the layer's outputs with Hugging Face's, then their bits between steps of different sizes."""
        executor, last = self._executor(products), len(PATH)
        whole = self._run(executor, [ROWS])
        if fault := self._compare_layer(whole):
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
        """Return the text's outputs ``[n, hidden]`` in steps of these sizes; its last rows may be a path of a tree."""
        arena, [table] = self._make_arena([ROWS + N])
        steps, outputs, first = [*torch.split(self._text[: sum(sizes)], [*sizes])], list[Tensor](), 0
        if ends_in_tree:
            steps.append(self._text[:N].clone())
            steps[-1][PATH] = self._text[-len(PATH) :]
        for rows in steps:
            is_tree, upload = ends_in_tree and rows is steps[-1], Upload(rows.device)
            work = _make_work(first, TREE, table) if is_tree else PathWork(first, len(rows), None, table.blocks)
            plan = make_plan([work], self._plan_shape(arena), [0] * len(rows))
            step = PlannedStep(arena, [], None, None, plan=plan, ints=upload.add(plan.ints, np.int32))
            upload.send()
            found = executor.run(rows[None], step)[0][0]
            outputs.append(found[PATH] if is_tree else found)
            first += len(rows)
        return torch.cat(outputs)

    @torch.inference_mode()
    def _compare_layer(self, found: Tensor) -> str:
        expected = self._wide(inputs_embeds=self._text[None].float()).last_hidden_state[0]
        clear = self._find_clear_rows()
        return _compare("a layer", found[clear], expected[clear])

    def _find_clear_rows(self) -> Tensor:
        """Return the numbers of the rows of the text whose experts do not depend on rounding: all, without experts."""
        k = self._shard.spec.experts_per_token
        if self._scores is None or k == self._scores.shape[1]:
            return torch.arange(len(self._text), device=self._text.device)
        best = self._scores.sort(dim=1, descending=True).values
        return (best[:, k - 1] - best[:, k] > ROUTER_GAP).nonzero().flatten()

    def _keep_scores(self, _module: nn.Module, _inputs: object, outputs: tuple[Tensor, ...]) -> None:
        self._scores = outputs[0]

    def _make_arena(self, lengths: Sequence[int]) -> tuple[KVArena, list[BlockTable]]:
        """Return a cache for sequences of these lengths, in descending blocks; the last block belongs to none."""
        counts, heads = [-(-n // BLOCK) for n in lengths], self._heads
        shape = (1, sum(counts) + 1, BLOCK, heads.n_kv_heads, heads.head_dim)
        free, tables = [*range(sum(counts))], [BlockTable(BLOCK) for _ in counts]
        for table, count in zip(tables, counts, strict=True):
            table.extend(free.pop() for _ in range(count))
        return KVArena(*shape, self._shard.dtype, self._shard.device), tables

    def _plan_shape(self, arena: KVArena) -> PlanShape:
        return PlanShape.of(self._shard.windows, self._shard.spec.groups, BLOCK, arena.n_rows - 1, SPLIT)

    def _make_random(self, *shape: int) -> Tensor:
        made = torch.randn(shape, generator=self._generator, device=self._generator.device)
        return made.to(self._shard.dtype)


def _make_work(n_cached: int, tree: TokenTree, table: BlockTable) -> PathWork:
    return PathWork(n_cached, N, None if tree is CHAIN else tree.parents, table.blocks)


def _attend_by_oracle(
    layer: KVLayer, heads: Heads, query: Tensor, n_cached: int, tree: TokenTree, table: BlockTable
) -> Tensor:
    """Return the attention of a root and its tree, ``[N, n_heads * head_dim]``."""
    rows, own = table.rows(0, n_cached + N, query.device), ([0, *tree.depths], tree.ancestor_mask())
    by_head = query.view(N, heads.n_heads, heads.head_dim)
    found = oracle_attention(by_head, layer.keys[rows], layer.values[rows], *own, heads.scale, heads.window)
    return found.flatten(1)


def _compare(name: str, found: Tensor, expected: Tensor) -> str:
    """Return by how much values differ if it is more than rounding, else ""."""
    error = float((found.double() - expected).abs().max() / expected.abs().max())
    if error <= TOLERANCES[found.dtype]:  # false for a NaN
        return ""
    return f"{name} differs from the oracle by {error:.2g} of the largest value"
