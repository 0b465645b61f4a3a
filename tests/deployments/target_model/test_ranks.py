"""Stages of several tensor-parallel ranks: their places and addresses, and the replacement of lost and moving ranks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from deployments.options import PipelineOptions
from deployments.pipeline.stage_reports import StageRoom
from deployments.stage.planning import plan_stages
from deployments.target_model import bundles, diagnosis
from deployments.target_model.bundles import Bundles, FreeBundles
from deployments.target_model.deployment import check_standbys, replica_placement
from deployments.target_model.stage_handle import StageHandle
from engine.errors import ConfigError
from engine.model.ranges import split_layers
from engine.target_model.options import LAYERS, Resolution, TargetOptions
from tests.deployments.slow_stage import GATE
from tests.deployments.target_model.conftest import LocalBundle, LocalBundles, Supervise, Supervised
from tests.support.tiny_models import saved_model
from tests.support.waiting import wait_until_async

TARGET = TargetOptions("m", stages=2, tensor_parallel=4)


def test_a_bundle_holds_all_ranks_of_a_stage() -> None:
    placed = replica_placement(PipelineOptions(cpus=0.5, gpus=1, placement="spread"), TARGET, 0.25)
    assert placed["placement_group_bundles"] == [{"CPU": 2.25, "GPU": 4}, {"CPU": 2, "GPU": 4}]
    assert placed["placement_group_strategy"] == "SPREAD"


async def test_ranks_of_a_stage_have_the_same_bundle_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(get_node_id=lambda: "n0", gcs_address="")
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    monkeypatch.setattr(bundles, "GcsClient", lambda address: None)
    make_group = Mock(side_effect=lambda *_, **__: SimpleNamespace())
    monkeypatch.setattr(bundles, "placement_group", make_group)
    group: Any = SimpleNamespace(bundle_count=2)
    pipeline = Bundles(group, {"GPU": 4.0}, "strict_spread", n_ranks=4)
    assert [one.index for one in pipeline.own] == [0] * 4 + [1] * 4
    assert [one.is_with(pipeline.own[5]) for one in pipeline.own] == [False] * 4 + [True] * 4
    reserved = await pipeline.reserve({"n0"})
    assert len({*reserved}) == 4
    assert [call.args for call in make_group.call_args_list] == [([{"GPU": 4.0}],)]  # one bundle of one group
    assert all(one.is_with(reserved[0]) and not one.is_with(pipeline.own[0]) for one in reserved)


async def test_a_reserved_group_is_given_back_once_when_all_its_ranks_have_ended() -> None:
    local: Any = LocalBundles(1, n_ranks=2)
    free = FreeBundles(local, lambda: ())
    first, second = await free.choose()
    for bundle, released in ((first, 0), (second, 1)):
        free.vacate(bundle)
        await free.refresh()
        await free.release_reserved()
        assert len(local.released) == released
    assert free.vacant == []


def test_the_plan_has_the_layers_of_stages_and_the_number_of_ranks() -> None:
    target = TargetOptions(str(saved_model("llama")), stages=2, tensor_parallel=2, kv_bytes=1 << 20)
    plan = plan_stages(target, saved_model("llama"), [StageRoom(1 << 30, Resolution(LAYERS))] * 4)
    assert (len(plan.ranges), plan.tensor_parallel) == (2, 2)


def test_standbys_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"standby_stages is 1 and tensor_parallel 4; .* set standby_stages to 0"):
        check_standbys(TARGET, PipelineOptions(standby_stages=1))
    check_standbys(TARGET, PipelineOptions())


@pytest.mark.parametrize(
    ("n_ranks", "number", "name"),
    [
        (1, 1, "stage 1 of 2 (layers 3 to 5)"),
        (4, 3, "stage 0 of 2, rank 3 of 4 (layers 0 to 2)"),
        (4, 4, "stage 1 of 2, rank 0 of 4 (layers 3 to 5)"),
    ],
)
async def test_a_process_is_named_by_stage_and_rank(n_ranks: int, number: int, name: str) -> None:
    async def answer(*_: object) -> Any:
        return None

    actor: Any = SimpleNamespace(
        load=SimpleNamespace(remote=answer),
        listen=SimpleNamespace(remote=answer),
        identity=SimpleNamespace(remote=answer),
    )
    plan: Any = SimpleNamespace(ranges=tuple(split_layers(6, 2)), tensor_parallel=n_ranks)
    handle = StageHandle(actor, "", LocalBundle("n0"), 1.0)  # type: ignore[arg-type]
    await handle.come_up(number, b"", plan)
    assert handle.name == name


def served(pipeline: Supervised) -> list[tuple[Any, ...]]:
    return [pipeline.stages[i].served for i in sorted(pipeline.stages)]


def addresses(pipeline: Supervised) -> list[str]:
    return [pipeline.stages[i].endpoint.unix for i in sorted(pipeline.stages)]  # type: ignore[union-attr]


async def test_leaders_get_the_next_leader_and_their_own_followers(supervised: Supervise) -> None:
    async with supervised(2, n_ranks=2) as pipeline:
        first, follower, second, other = addresses(pipeline)
        assert served(pipeline) == [
            (second, first, (follower,)),
            (None, "", ()),
            (None, second, (other,)),
            (None, "", ()),
        ]
        endpoints = await pipeline.supervisor.endpoints("n")
        assert (endpoints.first, endpoints.last) == (first, second)
        assert (endpoints.load.n_ranks, len(endpoints.load.processes)) == (2, 4)
        assert pipeline.supervisor.pids == [id(pipeline.stages[i]) for i in range(4)]
        assert [one["node"] for one in pipeline.state["stages"]] == ["n0", "n0", "n1", "n1"]


@pytest.mark.parametrize("victims", [(3,), (2,), (0, 3), (2, 3)])
async def test_a_lost_rank_is_replaced_alone_in_its_own_bundle(victims: tuple[int, ...], supervised: Supervise) -> None:
    async with supervised(2, n_ranks=2) as pipeline:
        expected, before = (await pipeline.answer()).results, dict(pipeline.stages)
        await pipeline.lose(*victims)
        await wait_until_async(lambda: bool(pipeline.supervisor.replacements) and pipeline.state["whole"])
        assert (await pipeline.answer()).results == expected
        assert sorted(pipeline.started) == sorted([0, 1, 2, 3, *victims])
        assert {i for i in range(4) if pipeline.stages[i] is not before[i]} == {*victims}
        assert all(pipeline.stages[i].bundle is before[i].bundle for i in range(4))
        assert served(pipeline)[0][2] + served(pipeline)[2][2] == (addresses(pipeline)[1], addresses(pipeline)[3])
        assert pipeline.bundles.reserved == []


async def test_a_rank_that_fails_to_load_is_started_again_in_its_bundle_before_the_pipeline_is_given_up(
    supervised: Supervise,
) -> None:
    async with supervised(2, n_ranks=2) as pipeline:
        pipeline.n_cannot_start = 1
        await pipeline.lose(3)
        assert (await pipeline.replaced()).error == ""
        pipeline.broken.add(3)
        await pipeline.lose(3)
        assert "model.safetensors is gone" in (await pipeline.replaced(2)).error
        assert {stage.bundle for stage in pipeline.launched} == {*pipeline.bundles.own}


async def test_a_stage_on_a_draining_node_moves_with_all_its_ranks_and_its_group_is_given_back(
    supervised: Supervise,
) -> None:
    async with supervised(2, n_ranks=2) as pipeline:
        expected, old = (await pipeline.answer()).results, pipeline.stages[2]
        pipeline.broken.add(3)
        pipeline.bundles.drained.add("n1")
        await wait_until_async(lambda: pipeline.started.count(3) >= 3)  # no rank moves without the other
        assert (pipeline.state["generation"], old.is_dead) == (1, False)
        assert all(spare.is_dead for spare in pipeline.launched[4:6])
        pipeline.broken.clear()
        done = await pipeline.replaced()
        assert (done.planned, dict(done.reasons)) == (True, dict.fromkeys((2, 3), "its node drains"))
        assert (await pipeline.answer()).results == expected
        assert pipeline.stages[2].bundle.is_with(pipeline.stages[3].bundle)
        assert pipeline.stages[2].bundle.node == pipeline.stages[3].bundle.node != "n1"
        reserved = pipeline.stages[2].bundle
        await pipeline.lose(3)  # is replaced in the reserved group, which stays
        await pipeline.replaced(2)
        assert pipeline.stages[3].bundle.is_with(reserved)
        for own in pipeline.bundles.own[2:]:
            own.node = "n9"  # the drained node is gone
        pipeline.bundles.drained.add(reserved.node)
        await wait_until_async(lambda: any(one.is_with(reserved) for one in pipeline.bundles.released))
        assert [one["node"] for one in pipeline.state["stages"]] == ["n0", "n0", "n9", "n9"]
        assert (await pipeline.answer()).results == expected


async def test_a_rank_lost_on_a_draining_node_moves_with_its_stage(supervised: Supervise) -> None:
    async with supervised(2, n_ranks=2) as pipeline:
        old = pipeline.stages[3]
        pipeline.may_load.clear()
        pipeline.bundles.drained.add("n1")
        await wait_until_async(lambda: len(pipeline.started) == 6)
        old.mark_dead("killed")
        await wait_until_async(lambda: not pipeline.state["whole"])
        pipeline.may_load.set()
        done = await pipeline.replaced()
        assert (done.planned, dict(done.reasons)) == (False, {2: "its stage moves", 3: "killed"})
        assert sorted(pipeline.started) == [0, 1, 2, 2, 3, 3]
        assert [one["node"] for one in pipeline.state["stages"]] == ["n0", "n0", "r0", "r0"]
        assert (await pipeline.answer()).error == ""


async def test_all_ranks_of_a_stage_stuck_in_a_step_are_replaced(
    supervised: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank answers pings and waits for the others: which one hangs cannot be known."""
    monkeypatch.setattr(diagnosis, "SUSPECT_S", 0.0)
    async with supervised(2, n_ranks=2) as pipeline:
        GATE.close(after=1)
        waiting = asyncio.create_task(pipeline.answer())
        await wait_until_async(lambda: GATE.is_holding)
        await pipeline.supervisor.report_hang("step 7 was not answered")
        done = await pipeline.replaced()
        assert sorted(done.reasons) == [2, 3]
        assert all("in one step" in reason for reason in done.reasons.values())
        GATE.open()
        assert (await waiting).error == ""


async def test_a_lost_stage_that_found_no_room_elsewhere_returns_to_its_own_bundle(supervised: Supervise) -> None:
    async with supervised(2, n_ranks=2) as pipeline:
        pipeline.bundles.has_room = False
        pipeline.bundles.drained.add("n1")
        await wait_until_async(lambda: bool(pipeline.bundles.reserved))
        for own in pipeline.bundles.own[2:]:
            own.node = "n9"  # Ray places them again once their node is gone
        await pipeline.lose(2, 3)
        assert (await pipeline.replaced()).error == ""
        assert [one["node"] for one in pipeline.state["stages"]] == ["n0", "n0", "n9", "n9"]
        assert (await pipeline.answer()).error == ""
