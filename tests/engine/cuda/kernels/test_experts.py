"""Experts equal a slow loop in fp64, and a row's bits depend on that row alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from engine.cuda import experts as launches
from engine.cuda.experts import add_experts
from engine.cuda.kernels.experts.products import sum_experts
from engine.cuda.kernels.experts.routing import route, sort_pairs
from engine.cuda.kernels.gemm import MOST_ROWS
from engine.cuda.operands import ExpertMlps, Matrix
from engine.model.exchange import FinishSums, Ranks
from engine.model.share import RankShare
from tests.engine.cuda.kernels.rows import assert_rows_alike, poisoned, same_bits
from tests.engine.cuda.kernels.test_gemm import FP8, tree_of
from tests.engine.cuda.kernels.test_groups import INT4, make_matrix, weights_of

HIDDEN, WIDTH, N_EXPERTS, PER_ROW = 64, 32, 16, 4


def make_experts(kind: str = "plain", n_experts: int = N_EXPERTS) -> ExpertMlps:
    """Random experts: plain fp32, fp8 with a scale for each output, or int4 with groups of 32."""
    random = torch.Generator().manual_seed(1)
    shapes = (n_experts * 2 * WIDTH, HIDDEN), (n_experts * HIDDEN, WIDTH)
    if kind == "int4":
        gate_up, down = (make_matrix(*shape, 32, INT4, 1, has_zeros=True) for shape in shapes)
    else:
        dtype = FP8 if kind == "fp8" else torch.float32
        scales = [torch.rand(n_out, generator=random) if kind == "fp8" else None for n_out, _ in shapes]
        numbers = [torch.randn(shape, generator=random).to(dtype) for shape in shapes]
        gate_up, down = (Matrix(*of, None, 1) for of in zip(numbers, scales, strict=True))
    router = Matrix(torch.randn(n_experts, HIDDEN, generator=random), None, None, 4)
    return ExpertMlps(router, gate_up, down, n_experts, 0, n_experts, PER_ROW, True, False)


def part_of(mlps: ExpertMlps, rank: int, size: int) -> ExpertMlps:
    """The experts of one of ``size`` ranks."""
    n_own = mlps.n_experts // size

    def rows(matrix: Matrix) -> Matrix:
        return replace(matrix, weight=matrix.weight.chunk(size)[rank].contiguous())

    return replace(mlps, gate_up=rows(mlps.gate_up), down=rows(mlps.down), first=rank * n_own, n_own=n_own)


def run(mlps: ExpertMlps, rows: Tensor, n_filling: int = 0, row_tile: int | None = None) -> Tensor:
    """The experts' sums of rows; after them the step has ``n_filling`` rows of NaN that fill its bucket."""
    step = torch.cat((rows, poisoned(n_filling, HIDDEN)))
    firsts = torch.tensor([*range(len(rows)), *([-1] * n_filling)], dtype=torch.int32)
    out = torch.zeros(len(step), HIDDEN)
    add_experts(mlps, step, firsts, "silu", out, row_tile)
    return out[: len(rows)]


def wide_weights(matrix: Matrix) -> Tensor:
    if matrix.groups is not None:
        return weights_of(matrix).double()
    return matrix.weight.double() * (1.0 if matrix.scales is None else matrix.scales[:, None].double())


def slow_experts(mlps: ExpertMlps, rows: Tensor) -> Tensor:
    """Expert by expert in fp64."""
    gate_up = wide_weights(mlps.gate_up).view(mlps.n_experts, 2 * WIDTH, HIDDEN)
    down = wide_weights(mlps.down).view(mlps.n_experts, HIDDEN, WIDTH)
    probability = (rows.double() @ mlps.router.weight.double().T).softmax(1)
    out = torch.zeros(rows.shape, dtype=torch.float64)
    for row, x in enumerate(rows.double()):
        chosen = probability[row].argsort(descending=True, stable=True)[: mlps.per_row].tolist()
        total = sum(probability[row, number] for number in chosen) if mlps.normalizes else 1.0
        for number in chosen:
            gate, up = (gate_up[number] @ x).chunk(2)
            out[row] += probability[row, number] / total * (down[number] @ (silu(gate) * up))
    return out


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["plain", "fp8", "int4"])
@pytest.mark.parametrize("normalizes", [False, True], ids=str)
def test_experts_equal_a_slow_loop(kind: str, normalizes: bool) -> None:
    """With several tiles of an expert, and a bucket that NaN fills."""
    mlps, rows = replace(make_experts(kind), normalizes=normalizes), torch.randn(70, HIDDEN)
    expected = slow_experts(mlps, rows)
    found = run(mlps, rows, n_filling=10)
    assert float((found - expected).abs().max()) < 2e-5 * float(expected.abs().max())


@pytest.mark.cluster
def test_a_rows_bits_depend_on_that_row_alone() -> None:
    mlps, rows = make_experts("int4"), torch.randn(20, HIDDEN)
    expected = run(mlps, rows)
    assert_rows_alike(lambda some: run(mlps, rows[some]), len(rows))
    assert same_bits(run(mlps, rows, n_filling=12, row_tile=64), expected)
    skewed = torch.cat((rows[:1].repeat(40, 1), rows))  # most rows have the same experts
    assert same_bits(run(mlps, skewed)[40:], expected)


@dataclass
class OneRank:
    """Keeps what a rank would send to the others."""

    is_lost: bool = False
    sent: list[Tensor] = field(default_factory=list)

    def add(self, partial: Tensor, out: Tensor, finish: FinishSums) -> None:
        self.sent.append(partial)


@pytest.mark.cluster
@pytest.mark.parametrize("size", [2, 4, 8])
def test_sums_of_ranks_have_the_bits_of_one_process(size: int) -> None:
    mlps, rows, firsts = make_experts(), torch.randn(9, HIDDEN), torch.arange(9, dtype=torch.int32)
    expected, exchange = run(mlps, rows), OneRank()
    for rank in range(size):
        ranks = Ranks(RankShare(rank, size), None, exchange)  # type: ignore[arg-type]
        part = replace(part_of(mlps, rank, size), ranks=ranks)
        add_experts(part, rows, firsts, "silu", torch.zeros(9, HIDDEN))
    assert all(part.dtype == torch.float32 for part in exchange.sent)
    assert same_bits(tree_of(exchange.sent), expected)


@pytest.mark.cluster
def test_many_rows_run_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launches.MOST_ROWS == MOST_ROWS
    mlps, rows, stream = make_experts(n_experts=6), torch.randn(7, HIDDEN), torch.randn(7, HIDDEN)
    expected = stream + run(mlps, rows)
    monkeypatch.setattr(launches, "MOST_ROWS", 3)
    add_experts(mlps, rows, torch.arange(7, dtype=torch.int32), "silu", stream)
    assert same_bits(stream, expected)


def scores_of(*rows: list[float]) -> tuple[Tensor, Tensor]:
    return torch.tensor(rows, dtype=torch.float16), torch.arange(len(rows), dtype=torch.int32)


@pytest.mark.cluster
def test_rows_are_routed_to_the_most_probable_experts_in_ascending_order() -> None:
    nan = float("nan")
    scores, firsts = scores_of([1, 5, 2, 5, 5], [0, 0, 0, 0, 0], [9, 1, 1, 1, 8], [nan] * 5, [1, 2, 3, 4, 5])
    firsts[4] = -1
    experts, weights = route(scores, firsts, 3, normalizes=True, rounds=True)
    assert experts.tolist() == [[1, 3, 4], [0, 1, 2], [0, 1, 4], [5, 5, 5], [5, 5, 5]]
    chosen = scores.float().softmax(1)[:3].gather(1, experts[:3].long())
    assert torch.equal(weights[:3], (chosen / chosen.sum(1, keepdim=True)).half().float())
    assert torch.equal(weights[3:], torch.zeros(2, 3))
    _, plain = route(scores, firsts, 3, normalizes=False, rounds=False)
    assert torch.allclose(plain[:3], chosen, rtol=1e-6)
    assert not torch.equal(plain[:3], chosen.half().float()), "no rounding would be seen"


@pytest.mark.cluster
@pytest.mark.parametrize("n_rows", [1, 700])
def test_every_own_pair_is_in_one_tile_of_its_expert(n_rows: int) -> None:
    """700 rows have more pairs than a program reads at a time."""
    random = torch.Generator().manual_seed(3)
    experts = torch.rand(n_rows, 8, generator=random).argsort(1)[:, :3].to(torch.int32)
    experts[1::5] = 8  # rows that have none
    tiles = sort_pairs(experts, 2, 5, 16)
    assert len(tiles.experts) == min(3 * n_rows, 3 * n_rows // 16 + 5)
    found: dict[int, list[int]] = {}
    for expert, pairs in zip(tiles.experts.tolist(), tiles.pairs.view(-1, 16).tolist(), strict=True):
        if expert >= 0:
            found.setdefault(expert + 2, []).extend(pair for pair in pairs if pair >= 0)
    expected = {number: torch.nonzero(experts.flatten() == number)[:, 0].tolist() for number in range(2, 7)}
    assert found == {number: pairs for number, pairs in expected.items() if pairs}
    unused = [expert < 0 for expert in tiles.experts.tolist()]
    assert unused == sorted(unused), "unused tiles are the last ones"


@pytest.mark.cluster
@pytest.mark.parametrize("n_experts", [16, 6])
def test_experts_are_added_in_ascending_order_and_ranges_as_a_tree(n_experts: int) -> None:
    """16 experts have 8 ranges, 6 experts have one; experts that another process has are not read."""
    mlps = replace(make_experts(n_experts=n_experts), per_row=6)
    experts = torch.tensor([[0, 1, 2, 3, 4, 5], [*range(n_experts - 6, n_experts)]], dtype=torch.int32)
    values, weights, out = torch.randn(12, 40), torch.rand(2, 6), poisoned(2, 40)
    sum_experts(values, experts, weights, mlps, out)
    size = 2 if n_experts == 16 else n_experts
    for row in range(2):
        ranges = [torch.zeros(40) for _ in range(n_experts // size)]
        for k, number in enumerate(experts[row].tolist()):
            ranges[number // size] = ranges[number // size] + weights[row, k] * values[row * 6 + k]
        assert same_bits(out[row], tree_of(ranges))
    if n_experts == 16:
        values[:6] = float("nan")  # of experts 0 to 5
        sum_experts(values, experts, weights, replace(mlps, first=8, n_own=8), out)
        assert torch.equal(out[0], torch.zeros(40))
        assert not bool(out[1].isnan().any())
