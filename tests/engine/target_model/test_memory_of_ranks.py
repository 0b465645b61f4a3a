"""Memory of targets whose stages have several ranks: blocks of KV cache, rooms of processes, and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.drafter.checkpoint.write import write_drafter
from engine.drafter.part import NO_DRAFTER
from engine.drafter.settings import DrafterSettings
from engine.errors import ConfigError
from engine.model.exchange import Ranks
from engine.model.loader import load_spec
from engine.model.matrices.linears import PackedLinear
from engine.model.share import RankShare
from engine.target_model.info import TargetInfo
from engine.target_model.loading import describe_target, load_parts
from engine.target_model.memory import step_bytes, with_cache
from engine.target_model.options import EXACT, LAYERS, STEP_ROWS, Resolution, TargetOptions
from engine.target_model.split import memory_of_stages, stage_ranges
from tests.support.served_drafters import drafter_spec, random_checkpoint
from tests.support.tiny_models import saved_model

MIB = 1 << 20
PATH = saved_model("llama")  # 4 query heads, 2 key heads, 4 layers


def options(n_ranks: int, stages: int = 1, **changes: object) -> TargetOptions:
    """Of a target on GPUs, which need not be there."""
    made = TargetOptions(str(PATH), stages, "float32", "cuda", None, 16, resolution=Resolution(LAYERS))
    return replace(made, tensor_parallel=n_ranks, **changes)  # type: ignore[arg-type]


def planned(n_ranks: int, rooms: Sequence[int], stages: int = 1, **changes: object) -> TargetInfo:
    return describe_target(with_cache(options(n_ranks, stages, **changes), PATH, rooms), PATH)


def test_a_block_takes_memory_of_every_rank_and_of_repeated_key_heads() -> None:
    blocks = [describe_target(options(n, kv_bytes=MIB), PATH).n_blocks for n in (1, 2, 4)]
    assert blocks == [MIB // (16 * 4 * 2 * 2 * 8 * 4)] * 2 + [MIB // (16 * 4 * 2 * 4 * 8 * 4)]


def test_the_rank_with_the_least_room_is_filled_and_none_is_overfilled() -> None:
    spec = load_spec(PATH)
    rooms = (60 * MIB, 50 * MIB, 40 * MIB, 60 * MIB)  # of two stages
    asked = with_cache(options(2, 2), PATH, rooms)
    info = describe_target(asked, PATH)
    for n_blocks, fits in ((info.n_blocks, True), (info.n_blocks + 1, False)):
        held = memory_of_stages(asked, PATH, replace(info, n_blocks=n_blocks), stage_ranges(asked, PATH, info))
        steps = [step_bytes(spec, STEP_ROWS, one.layers.is_last, False, 2) for one in held]
        taken = [one.weights + one.kv + step for one, step in zip(held, steps, strict=True)]
        assert (taken[0] <= 50 * MIB and taken[1] <= 40 * MIB) is fits
    assert str(held[1]).startswith("layers 2 to 3, each of 2 ranks: ")
    assert info.n_blocks == planned(2, (50 * MIB, 60 * MIB, 60 * MIB, 40 * MIB), 2).n_blocks
    assert info.n_blocks > planned(1, (50 * MIB, 40 * MIB), 2).n_blocks
    assert asked.kv_bytes is not None
    assert sum(2 * one.kv for one in held) == asked.kv_bytes + 2 * 4 * 16 * 2 * 1 * 8 * 4  # with one block more


def test_a_step_takes_the_heads_of_a_rank_and_all_logits() -> None:
    spec = load_spec(PATH)
    one, two = (step_bytes(spec, 1, False, False, n) for n in (1, 2))
    assert one - two == 4 * (2 * (4 + 2 * 2) * 8 // 2 + 3 * 48 // 2 - 2 * 32)  # and the sums of both ranks
    assert step_bytes(spec, 1, True, False, 2) - two == 3 * 4 * spec.vocab_size


def test_errors_speak_of_a_rank() -> None:
    with pytest.raises(ConfigError, match=r"kv_gib is auto, but a rank of stage 1 has no room for a KV cache"):
        planned(2, (60 * MIB, 60 * MIB, 60 * MIB, MIB), 2)
    with pytest.raises(ConfigError, match=r"stage_memory_gib is 9\.\d*e-06 for a rank of stage 0, but no split fits"):
        planned(2, (60 * MIB,) * 4, 2, stage_memory=(10_000,))
    with pytest.raises(ConfigError, match=r"tensor_parallel is 3; .* which 1, 2, 4 ranks can share"):
        describe_target(options(3, kv_bytes=MIB), PATH)
    exact = replace(options(8, kv_bytes=MIB), resolution=Resolution(EXACT))
    with pytest.raises(ConfigError, match=r"tensor_parallel is 8; .* numerics exact"):
        describe_target(exact, PATH)


def test_only_the_leader_has_the_drafter(tmp_path: Path) -> None:
    spec = load_spec(PATH)
    write_drafter(tmp_path, random_checkpoint(drafter_spec("eagle", spec)), spec)
    asked = options(2, 2, device="cpu", kv_bytes=MIB, drafter=DrafterSettings(str(tmp_path)))
    info = describe_target(asked, PATH)
    last = stage_ranges(asked, PATH, info)[1]
    [(leader, drafts)], [(follower, none)] = (
        load_parts(asked, PATH, [last], info, ranks=Ranks(RankShare(rank, 2), spec)) for rank in (0, 1)
    )
    assert drafts.runtime is not None
    assert none is NO_DRAFTER
    assert leader.embed(torch.tensor([3])).shape == (1, 1, 32)
    with pytest.raises(AssertionError, match="no embedding"):
        follower.embed(torch.tensor([3]))
    for shard in (leader, follower):
        assert type(shard.head_module.linear) is PackedLinear
        assert type(shard.layers[0].self_attn.o_proj.linear) is PackedLinear  # type: ignore[union-attr]
