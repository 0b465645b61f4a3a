"""Plans of mixtures of experts and of quantised checkpoints equal arithmetic that is written out."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import MixtralConfig, PreTrainedConfig, Qwen3MoeConfig

from app.planning.cluster import EXPERT_KERNELS, Cluster, Hardware, derived_profile, spread
from app.planning.layouts import PlanRequest, layouts
from app.planning.sizes import ModelSizes
from engine.errors import ConfigError
from engine.model.build import empty_model
from engine.model.matrices.layout import read_layout
from engine.model.matrices.linears import is_layer_matrix
from engine.model.matrices.stored import quantize_as
from engine.model.partition import GIB
from engine.model.ranges import LayerRange
from engine.model.share import RankShare, allowed_sizes, check_ranks
from engine.model.spec import read_spec
from engine.simulated.profile import PipelineProfile, profile_of
from engine.target_model.memory import step_bytes
from tests.support.model_shapes import llama_70b

BF16, CPU = torch.bfloat16, torch.device("cpu")
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}


def qwen(size: str = "30b", **more: Any) -> Qwen3MoeConfig:
    """Return the configuration of Qwen3-30B-A3B or Qwen3-235B-A22B."""
    sizes = {"30b": (2048, 48, 32, 768), "235b": (4096, 94, 64, 1536)}
    hidden, layers, heads, width = sizes[size]
    return Qwen3MoeConfig(
        vocab_size=151936,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=4,
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=width,
        max_position_embeddings=40960,
        norm_topk_prob=True,
        **more,
    )


def mixtral() -> MixtralConfig:
    """Return the configuration of Mixtral 8x7B."""
    return MixtralConfig(
        vocab_size=32000,
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14336,
        num_local_experts=8,
        num_experts_per_tok=2,
    )


def awq_70b() -> PreTrainedConfig:
    config = llama_70b()
    config.quantization_config = AWQ
    return config


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [(qwen(), 30.53, 3.35), (qwen("235b"), 235.09, 22.19), (mixtral(), 46.70, 12.88), (llama_70b(), 70.55, 70.55)],
    ids=["30b", "235b", "mixtral", "llama"],
)
def test_total_and_active_parameters_are_the_published_ones(
    config: PreTrainedConfig, total: float, active: float
) -> None:
    sizes = ModelSizes.of(config, BF16)
    assert (sizes.n_parameters / 1e9, sizes.n_active / 1e9) == pytest.approx((total, active), abs=0.01)


def test_ranks_share_whole_experts_and_every_other_weight_as_before() -> None:
    config = qwen()
    config.num_hidden_layers = 1
    spec = read_spec(config)
    assert [list(RankShare(rank, 64).own_experts(spec)) for rank in (0, 63)] == [[0, 1], [126, 127]]
    sizes = ModelSizes.of(config, BF16)
    expert, attention = 3 * 768 * 2048, 2 * (32 + 4) * 128 * 2048
    norms_and_router = 2 * 2048 + 2 * 128 + 128 * 2048
    for size in (1, 4):
        [layer] = sizes.of_rank(size).parameters.layers
        assert layer == 128 // size * expert + attention // size + norms_and_router
        assert sizes.of_rank(size).parameters.experts == (128 // size * expert,)
        assert sizes.of_rank(size).active.layers == (8 / size * expert + attention // size + norms_and_router,)
    last = RankShare(3, 4)
    name = "model.layers.0.mlp.experts.{}.down_proj.weight"
    assert [last.has(name.format(n), spec) for n in (0, 95, 96, 127)] == [False, False, True, True]
    assert last.part(name.format(127), (2048, 768), spec) is None
    assert last.has("model.layers.0.mlp.gate.weight", spec)


def test_ranks_must_divide_the_experts() -> None:
    spec = read_spec(qwen())
    assert allowed_sizes(spec) == [1, 2, 4, 8, 16, 32]  # of 32 heads
    assert allowed_sizes(read_spec(mixtral())) == [1, 2, 4, 8]
    config = qwen()
    config.num_experts = 60
    sixty = read_spec(config)
    assert allowed_sizes(sixty, is_exact=True) == [1]  # 8 does not divide 60
    with pytest.raises(ConfigError, match=r"tensor_parallel is 8; .* 4 key heads and 60 experts, which 1, 2, 4 ranks"):
        check_ranks(8, sixty)


def test_bytes_of_groups_blocks_and_outputs() -> None:
    weights = {"attention": (64 + 2 * 8 + 64) * 128 * 8192, "mlp": 3 * 28672 * 8192}
    per_layer, norms = sum(weights.values()), 2 * 2 * 8192
    int4, int8 = ModelSizes.of(awq_70b(), BF16), ModelSizes.of(llama_70b(), BF16, "int8")
    assert int4.weights.layers[0] == per_layer // 2 + per_layer // 128 * (2 + 2) + norms  # a scale and a zero a group
    assert int8.weights.layers[0] == per_layer + 4 * (64 * 128 + 2 * 8 * 128 + 8192 + 2 * 28672 + 8192) + norms
    assert (int4.format, int8.format) == ("int4", "int8")
    on_cpu = ModelSizes.of(awq_70b(), torch.float32, device=CPU)
    assert on_cpu.bytes == ModelSizes.of(llama_70b(), torch.float32).bytes
    whole, rank = (ModelSizes.of(qwen(quantization_config=FP8), BF16).of_rank(n) for n in (1, 4))
    assert rank.weights.experts[0] == whole.weights.experts[0] / 4 == 32 * 3 * 768 * 2048 * (1 + 4 / 128)


def test_a_rank_has_every_group_that_its_inputs_cut() -> None:
    config = awq_70b()
    config.intermediate_size, config.num_hidden_layers = 8 * 96, 1
    for rank, groups in ((0, 1), (1, 2), (2, 2), (3, 1)):  # inputs 0 to 95, 96 to 191, 192 to 287, 288 to 383 of down
        sizes = ModelSizes.of(config, BF16, share=RankShare(rank, 8))
        others, own = 2 * 96 * 64 + 8192 * 8 + (8 + 2) * 128 * 64, 8192 * groups  # gate and up, attention, down
        assert sizes.weights.layers[0] == (others + own) * (64 + 4) + 2 * 2 * 8192


def test_planned_bytes_of_matrices_are_those_in_memory() -> None:
    config = qwen(quantization_config=AWQ)
    config.num_hidden_layers, config.hidden_size, config.moe_intermediate_size = 1, 160, 96
    config.num_experts, config.num_experts_per_tok = 4, 2
    model, total = empty_model(config), 0
    for name, weight in model.named_parameters():
        if is_layer_matrix(model, name):
            linear = quantize_as(torch.ones(weight.shape), read_layout(AWQ)).linear(None)
            scales = linear.groups  # type: ignore[attr-defined]
            total += linear.weight.nbytes + 2 * scales.scales.numel() + scales.zeros.nbytes  # type: ignore
        elif name.startswith("model.layers."):
            total += 2 * weight.numel()
    assert ModelSizes.of(config, BF16).weights.layers == (total,)


@pytest.mark.parametrize("size", [1, 4])
def test_a_step_reads_the_experts_of_its_rows(size: int) -> None:
    speeds = Hardware(3e12, 8e14, kernel_s=2e-6)
    sizes = ModelSizes.of(qwen(), BF16).of_rank(size)
    times = derived_profile(sizes, [LayerRange(0, 48, 48)], speeds, size)
    expert, attention = 3 * 768 * 2048, 2 * (32 + 4) * 128 * 2048
    whole = 2 * 2048 + 2 * 128 + 128 * 2048  # norms and router
    head = 151936 * 2048 // size + 2048
    base_s = (
        2 * (48 * (attention // size + whole) + head) / 3e12 + (48 * (12 + EXPERT_KERNELS + 2 * (size > 1)) + 10) * 2e-6
    )
    expert_s = 48 * 2 * expert / 3e12
    assert (times.base_s, times.expert_s) == pytest.approx((base_s, expert_s))
    assert (times.experts_per_rank, times.expert_fraction, times.expert_ranks) == (128 // size, 1 / 16, size)
    assert times.prompt_row_s == pytest.approx(2 * (48 * (attention // size + whole + 8 / size * expert) + head) / 8e14)
    alone = times.stage_seconds(1, 0) - times.exchange_seconds(1)
    assert size > 1 or alone == pytest.approx(base_s + 8 * expert_s)
    tree_s = times.stage_seconds(1, 63) - times.exchange_seconds(64) - 63 * times.node_s
    assert tree_s == pytest.approx(base_s + (1 if size == 1 else 0.9999) * 128 / size * expert_s, rel=0.02)
    assert 2 * spread(times, 2).stage_seconds(1, 9) == pytest.approx(times.stage_seconds(1, 9))


def test_the_busiest_rank_is_estimated_from_above() -> None:
    chance = random.Random(5)
    for n_experts, per_row, size, rows in (
        (128, 8, 8, 1),
        (128, 8, 8, 4),
        (128, 8, 2, 1),
        (8, 2, 2, 2),
        (128, 8, 4, 16),
    ):
        own, most = n_experts // size, 0
        for _ in range(300):
            read = {expert for _ in range(rows) for expert in chance.sample(range(n_experts), per_row)}
            most += max(sum(expert // own == rank for expert in read) for rank in range(size))
        found = PipelineProfile(1, experts_per_rank=own, expert_fraction=per_row / n_experts, expert_ranks=size)
        assert most / 300 <= found.read_experts(rows) <= 1.25 * most / 300


def test_drafts_gain_less_from_experts_than_from_one_mlp() -> None:
    times = derived_profile(ModelSizes.of(qwen(), BF16), [LayerRange(0, 48, 48)], Hardware(3e12))
    sparse = Cluster(times, 1, 3e-4, 5e-4)
    dense = Cluster(PipelineProfile(times.stage_seconds(1, 0), flat_rows=200, node_s=times.node_s), 1, 3e-4, 5e-4)
    gains = [one.speculating(1, 63).tokens_per_s / one.decoding(1).tokens_per_s for one in (sparse, dense)]
    assert gains[0] < 1 < gains[1]
    assert sparse.best_nodes(1) < sparse.best_nodes(32)  # whose rows read most experts anyway


def test_a_profile_with_experts_can_be_simulated_and_is_checked() -> None:
    given = {"base_s": 1e-3, "expert_s": 1e-5, "experts_per_rank": 128, "expert_fraction": 0.0625}
    assert profile_of(given).stage_seconds(1, 0) == pytest.approx(1e-3 + 8e-5)
    assert profile_of(given).stage_seconds(0, 0, prompt_rows=500) == pytest.approx(1e-3 + 128e-5)
    for name, value in (("expert_fraction", 1.5), ("expert_ranks", 0), ("experts_per_rank", -1)):
        with pytest.raises(ConfigError, match=f"profile: {name} is {value}"):
            profile_of(given | {name: value})


@pytest.mark.parametrize(
    ("config", "gpus", "fits"),
    [
        (awq_70b(), 1, {(1, 1, 1): 38}),
        pytest.param(qwen(), 1, {(1, 1, 1): 57}, marks=pytest.mark.matrix),
        (qwen(quantization_config=FP8), 1, {(1, 1, 1): 30}),
        (
            qwen("235b", quantization_config=FP8),
            8,
            {(2, 4, 1): 59, (1, 8, 1): 30, (2, 2, 2): 57, (1, 4, 2): 30, (2, 1, 4): 58, (1, 2, 4): 29, (1, 1, 8): 30},
        ),
    ],
    ids=["70b-awq", "30b", "30b-fp8", "235b-fp8"],
)
def test_public_checkpoints_fit_gpus_of_80_gib(
    config: PreTrainedConfig, gpus: int, fits: dict[tuple[int, int, int], int]
) -> None:
    found = layouts(ModelSizes.of(config, BF16), PlanRequest(gpus, 72 * GIB, 4096), Hardware(), None)
    held = {(one.replicas, one.stages, one.tensor_parallel): one for one in found if one.rates}
    assert {shape: round(one.largest_weights / GIB) for shape, one in held.items()} == fits


def test_a_step_has_room_for_every_pair_of_a_row_and_an_expert() -> None:
    spec, dense = read_spec(qwen()), read_spec(llama_70b())
    for size in (1, 2):
        own = RankShare(0, size).spec(spec)
        states = (4 if size == 1 else 6) * 2048 + 2 * (own.n_heads + 2 * own.n_kv_heads) * 128
        assert step_bytes(spec, 1, False, False, size) == 4 * (states + 8 * (3 * 768 + 2048))
    assert step_bytes(dense, 1, False, False) == 4 * (4 * 8192 + 2 * 80 * 128 + 3 * 28672)
