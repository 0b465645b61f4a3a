"""Memory of a target: the KV cache of ``kv_gib: auto``, and a trained drafter on the last stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.cuda.plan.layout import PARTIAL_BYTES
from engine.drafter.checkpoint.write import write_drafter
from engine.drafter.settings import DrafterSettings
from engine.errors import ConfigError
from engine.model.loader import load_spec
from engine.scheduling.batch_limits import SchedulerOptions
from engine.simulated.profile import PipelineProfile, Simulation
from engine.target_model.info import TargetInfo
from engine.target_model.loading import describe_target, load_parts
from engine.target_model.local import LocalTarget
from engine.target_model.memory import MOST_BLOCKS, room_of, step_bytes, with_cache
from engine.target_model.options import ANY, CPU_CACHE, EXACT, FAST, GIB, LAYERS, STEP_ROWS, Resolution, TargetOptions
from engine.target_model.split import memory_of_stages, stage_ranges
from tests.support.served_drafters import drafter_spec, random_checkpoint
from tests.support.tiny_models import saved_model

MIB = 1 << 20


def options_of(path: Path, stages: int = 1, **changes: object) -> TargetOptions:
    """Of a target on a GPU, which need not be there; without executors, whose steps take more than these rooms."""
    layers = Resolution(LAYERS)
    made = TargetOptions(str(path), stages, "float32", "cuda", kv_bytes=None, block_size=16, resolution=layers)
    return replace(made, **changes)  # type: ignore[arg-type]


def held(options: TargetOptions, path: Path) -> tuple[TargetInfo, list[int], list[int]]:
    """The target, and bytes of each stage as it is and with one more block."""
    info = describe_target(options, path)
    ranges = stage_ranges(options, path, info)
    more = replace(info, n_blocks=info.n_blocks + 1)
    steps = [step_bytes(info.spec, STEP_ROWS, layers.is_last, False) for layers in ranges]
    taken = []
    for it in (info, more):
        stages = memory_of_stages(options, path, it, ranges)
        taken.append([one.weights + one.kv + step for one, step in zip(stages, steps, strict=True)])
    return info, taken[0], taken[1]


@pytest.mark.parametrize("rooms", [(60 * MIB,), (60 * MIB, 40 * MIB), (40 * MIB, 60 * MIB), (50 * MIB,) * 4], ids=str)
def test_the_stage_with_least_room_is_filled_and_none_is_overfilled(rooms: tuple[int, ...]) -> None:
    path = saved_model("llama")
    info, taken, more = held(with_cache(options_of(path, len(rooms)), path, rooms), path)
    assert info.n_blocks > 100
    assert all(one <= room for one, room in zip(taken, rooms, strict=True))
    assert any(one > room for one, room in zip(more, rooms, strict=True))


def test_a_drafter_has_room_on_the_last_stage(tmp_path: Path) -> None:
    path, rooms = saved_model("llama"), (60 * MIB, 60 * MIB)
    spec = load_spec(path)
    write_drafter(tmp_path, random_checkpoint(drafter_spec("p-eagle", spec)), spec)
    drafter = DrafterSettings(str(tmp_path))
    plain = with_cache(options_of(path, 2), path, rooms)
    both = with_cache(options_of(path, 2, drafter=drafter), path, rooms)
    info, taken, more = held(both, path)
    assert info.n_blocks < describe_target(plain, path).n_blocks
    assert max(taken) <= 60 * MIB < max(more)


def blocks_with(path: Path, rooms: Sequence[int], stages: int = 1, **changes: object) -> int:
    return describe_target(with_cache(options_of(path, stages, **changes), path, rooms), path).n_blocks


def test_the_smallest_room_the_step_size_and_caps_decide() -> None:
    path = saved_model("llama")
    alone = blocks_with(path, [60 * MIB])
    assert blocks_with(path, [60 * MIB], 4) == alone, "stages of one process share its device"
    assert blocks_with(path, [60 * MIB], step_rows=2 * STEP_ROWS) < alone
    with_partials = [60 * MIB + PARTIAL_BYTES]
    for resolution in (None, Resolution(EXACT), Resolution(FAST)):
        assert blocks_with(path, with_partials, resolution=resolution) == alone, "an executor holds partial softmaxes"
    found = {blocks_with(path, rooms, 2) for rooms in ((60 * MIB, 40 * MIB), (50 * MIB, 40 * MIB), (ANY, 40 * MIB))}
    assert len(found) == 1
    assert blocks_with(path, [ANY, ANY], 2) == MOST_BLOCKS
    capped = with_cache(options_of(path, 2, stage_memory=(MIB,)), path, [ANY, ANY])
    info = describe_target(capped, path)
    stages = memory_of_stages(capped, path, info, stage_ranges(capped, path, info))
    assert 0.9 * MIB < max(one.weights + one.kv for one in stages) <= MIB


def test_an_error_says_which_stage_has_no_room_for_a_cache() -> None:
    path = saved_model("llama")
    with pytest.raises(ConfigError, match=r"kv_gib is auto, but stage 1 has no room for a KV cache: .* GiB of weights"):
        with_cache(options_of(path, 2), path, [60 * MIB, MIB])
    with pytest.raises(ConfigError, match="but the target has no room"):
        with_cache(options_of(path, 2), path, [MIB])
    info = replace(describe_target(options_of(path, kv_bytes=ANY), path), n_blocks=3)
    [three] = memory_of_stages(options_of(path), path, info, stage_ranges(options_of(path), path, info))
    with pytest.raises(ConfigError, match="kv_gib is auto, but stage 0 has no room for a KV cache"):
        with_cache(options_of(path, stage_memory=(three.weights + three.kv,)), path, [60 * MIB])


def test_a_given_size_stays_and_a_cpu_has_its_own_default() -> None:
    path = saved_model("llama")
    named = options_of(path, kv_bytes=MIB)
    assert with_cache(named, path, [1]) is named
    on_a_cpu = options_of(path, device="cpu")
    assert with_cache(on_a_cpu, path, []) == replace(on_a_cpu, kv_bytes=CPU_CACHE)
    assert LocalTarget.load(on_a_cpu, path).info == describe_target(replace(on_a_cpu, kv_bytes=GIB // 2), path)


def test_gpus_of_one_kind_have_the_same_room_whatever_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [0]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free[0], 80 * GIB))
    rooms = set()
    for free[0] in (79 * GIB, 78 * GIB, 75 * GIB):
        rooms.add((room_of("cuda"), room_of("cuda:1", 2.0), 2 * room_of("cuda", 0.5)))
    assert rooms == {(72 * GIB,) * 3}
    free[0] = 10 * GIB  # other processes hold the rest
    assert room_of("cuda") < 10 * GIB
    assert room_of("cpu") == ANY


def test_memory_is_reserved_for_the_largest_step_its_partials_and_its_logits() -> None:
    assert SchedulerOptions().max_step_rows == STEP_ROWS
    spec = describe_target(TargetOptions("m"), saved_model("llama")).spec
    plain = step_bytes(spec, STEP_ROWS, is_last=False, has_executor=False)
    assert step_bytes(spec, STEP_ROWS, is_last=False, has_executor=True) - plain == PARTIAL_BYTES
    assert step_bytes(spec, STEP_ROWS, is_last=True, has_executor=False) - plain == STEP_ROWS * 12 * spec.vocab_size


def options(folder: Path, kind: str, stages: int = 2) -> TargetOptions:
    """The tiny Llama with a saved drafter."""
    path = saved_model("llama")
    spec = load_spec(path)
    write_drafter(folder, random_checkpoint(drafter_spec(kind, spec)), spec)
    return TargetOptions(
        str(path), stages=stages, kv_bytes=1 << 20, block_size=16, drafter=DrafterSettings(str(folder), depth=3)
    )


def test_the_cache_is_shared_with_the_drafter(tmp_path: Path) -> None:
    asked = options(tmp_path, "p-eagle")
    path = Path(asked.model)
    alone, both = describe_target(replace(asked, drafter=None), path), describe_target(asked, path)
    per_token = 2 * 8 * 2 * 4  # keys and values of two heads, fp32, a layer
    assert alone.n_blocks == asked.kv_bytes // (16 * 4 * per_token)
    assert both.n_blocks == asked.kv_bytes // (16 * 5 * per_token)
    assert alone.difference(both) == f"n_blocks {both.n_blocks} instead of {alone.n_blocks}, another drafter"
    held = memory_of_stages(asked, path, both, stage_ranges(asked, path, both))
    assert sum(stage.kv for stage in held) == both.n_blocks * 16 * 5 * per_token


def test_a_stage_refuses_another_drafter_than_the_pipelines(tmp_path: Path) -> None:
    asked = options(tmp_path / "first", "medusa")
    path = Path(asked.model)
    info = describe_target(asked, path)
    spec = load_spec(path)
    changed = random_checkpoint(drafter_spec("medusa", spec), seed=1)
    write_drafter(tmp_path / "first", changed, spec)
    with pytest.raises(ConfigError, match="is not the one with which the pipeline began"):
        load_parts(asked, path, stage_ranges(asked, path, info), info)
    with pytest.raises(ConfigError, match="a simulated target has no states"):
        describe_target(replace(asked, simulation=Simulation(PipelineProfile(1e-3), b"")), path)
