"""Processes that wait for a stage to be lost: taken, replaced, moved to the bundle that fits best, given back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from deployments.target import standbys
from tests.deployments.target.conftest import Supervise, Supervised


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not true():
            await asyncio.sleep(0.01)


def nodes_of(pipeline: Supervised) -> list[object]:
    """Nodes of the standbys that are ready."""
    return [one["node"] for one in pipeline.supervisor.state()["standbys"] if one["ready"]]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standbys, "LOOK_S", 0.02)
    monkeypatch.setattr(standbys, "AGAIN_S", 0.05)


async def test_a_standby_becomes_the_lost_stage_and_another_waits_in_its_bundle(supervised: Supervise) -> None:
    async with supervised(standbys=1) as pipeline:
        await until(lambda: nodes_of(pipeline) == ["r0"])
        assert pipeline.bundles.away_from == {"n0", "n1", "n2"}
        wanted = (await pipeline.answer()).results
        await pipeline.lose(1)
        await until(lambda: len(pipeline.supervisor.replacements) == 1)
        assert (await pipeline.answer()).results == wanted
        assert pipeline.supervisor.state()["stages"][1]["node"] == "r0"
        assert pipeline.supervisor.replacements[0].standbys == 1
        await until(lambda: nodes_of(pipeline) == ["n1"])
        assert pipeline.started == [0, 1, 2, 1]
        assert pipeline.bundles.released == []


async def test_without_standbys_no_bundle_is_reserved(supervised: Supervise) -> None:
    async with supervised() as pipeline:
        await pipeline.lose(2)
        await until(lambda: len(pipeline.supervisor.replacements) == 1)
        assert pipeline.supervisor.replacements[0].standbys == 0
        assert pipeline.supervisor.state()["stages"][2]["node"] == "n2"
        assert (pipeline.bundles.reserved, len(pipeline.launched)) == ([], 4)


async def test_a_standby_that_dies_is_followed_by_another_in_its_bundle(supervised: Supervise) -> None:
    async with supervised(2, standbys=1) as pipeline:
        await until(lambda: nodes_of(pipeline) == ["r0"])
        dead = pipeline.launched[-1]
        dead.mark_dead("killed")
        await until(lambda: nodes_of(pipeline) == ["r0"] and pipeline.launched[-1] is not dead)
        assert dead.is_dead
        assert (len(pipeline.bundles.reserved), pipeline.supervisor.replacements) == (1, [])


async def test_standbys_that_do_not_come_up_are_tried_again_and_stages_do_not_care(supervised: Supervise) -> None:
    async with supervised(2, standbys=1) as pipeline:
        await until(lambda: nodes_of(pipeline) == ["r0"])
        pipeline.cannot_start = 3
        pipeline.launched[-1].mark_dead("killed")
        await until(lambda: len(nodes_of(pipeline)) == 1 and len(pipeline.launched) == 7)
        assert pipeline.supervisor.replacements == []
        assert (await pipeline.answer()).error == ""


async def test_a_standby_leaves_a_draining_node_and_gives_its_bundle_back(supervised: Supervise) -> None:
    async with supervised(2, standbys=1) as pipeline:
        await until(lambda: nodes_of(pipeline) == ["r0"])
        leaving = pipeline.launched[-1]
        pipeline.bundles.drained.add("r0")
        await until(lambda: nodes_of(pipeline) == ["r1"])
        assert leaving.is_dead
        assert pipeline.bundles.released == pipeline.bundles.reserved[:1]


async def test_a_standby_moves_to_an_own_bundle_that_has_become_free(supervised: Supervise) -> None:
    """Else the pipeline held both."""
    async with supervised(2, standbys=1) as pipeline:
        await until(lambda: nodes_of(pipeline) == ["r0"])
        pipeline.bundles.drained.add("n1")
        await until(lambda: len(pipeline.supervisor.replacements) == 1)
        await until(lambda: nodes_of(pipeline) == ["r1"])  # not on the draining node
        pipeline.bundles.own[1].node = "n9"  # the old one has gone
        await until(lambda: nodes_of(pipeline) == ["n9"])
        await until(lambda: pipeline.bundles.released == pipeline.bundles.reserved[1:])
        assert nodes_of(pipeline) == ["n9"]
        assert len(pipeline.supervisor.replacements) == 1


async def test_a_loss_does_not_wait_for_a_standby_that_has_no_room(supervised: Supervise) -> None:
    async with supervised(2, standbys=1) as pipeline:
        await until(lambda: nodes_of(pipeline) == ["r0"])
        pipeline.bundles.has_room = False
        pipeline.bundles.drained.add("r0")
        await until(lambda: len(pipeline.bundles.reserved) == 2)
        await pipeline.lose(1)
        await until(lambda: len(pipeline.supervisor.replacements) == 1)
        assert pipeline.supervisor.state()["stages"][1]["node"] == "n1"
        pipeline.bundles.reserved[1].node = "r1"
        await until(lambda: nodes_of(pipeline) == ["r1"])


async def test_two_stages_lost_at_once_take_the_standby_and_a_new_process(supervised: Supervise) -> None:
    async with supervised(standbys=1) as pipeline:
        wanted = (await pipeline.answer()).results
        await until(lambda: nodes_of(pipeline) == ["r0"])
        for number in (0, 2):
            await pipeline.lose(number)
        await until(lambda: bool(pipeline.supervisor.replacements) and pipeline.supervisor.state()["whole"])
        assert (await pipeline.answer()).results == wanted
        await until(lambda: len(nodes_of(pipeline)) == 1)


@pytest.mark.parametrize("why", ["the owner's node drains", "the owner is being stopped"])
async def test_a_pipeline_that_is_about_to_end_leaves_the_room_of_its_standbys_to_the_next(
    supervised: Supervise, why: str
) -> None:
    async with supervised(2, standbys=1) as pipeline:
        await until(lambda: nodes_of(pipeline) == ["r0"])
        if why == "the owner's node drains":
            pipeline.bundles.drained.add("n0")
        else:
            await pipeline.supervisor.until_unused(0.1)
        await until(lambda: pipeline.bundles.released == pipeline.bundles.reserved)
        assert nodes_of(pipeline) == []
        await pipeline.lose(1)  # is replaced all the same
        await until(lambda: len(pipeline.supervisor.replacements) == 1)
        assert (await pipeline.answer()).error == ""


async def test_standbys_are_kept_through_a_time_without_a_gcs(
    supervised: Supervise, caplog: pytest.LogCaptureFixture
) -> None:
    async with supervised(2, standbys=1) as pipeline:
        await until(lambda: nodes_of(pipeline) == ["r0"])
        pipeline.bundles.is_away = True
        await until(lambda: "cannot be looked at" in caplog.text)
        await pipeline.lose(1)
        await until(lambda: len(pipeline.supervisor.replacements) == 1)
        assert pipeline.supervisor.state()["stages"][1]["node"] == "r0"
        pipeline.bundles.is_away = False
        await until(lambda: nodes_of(pipeline) == ["n1"])
    assert caplog.text.count("cannot be looked at") == 1


async def test_a_process_started_for_a_replacement_that_was_given_up_is_ended(supervised: Supervise) -> None:
    async with supervised(2, limit=0.3) as pipeline:
        pipeline.bundles.drained.add("n1")
        pipeline.bundles.has_room = False
        await until(lambda: len(pipeline.bundles.reserved) == 1)
        await pipeline.lose(1)
        await until(lambda: len(pipeline.supervisor.replacements) == 1)
        assert "longer than 0.3 s" in pipeline.supervisor.replacements[0].error
        pipeline.bundles.reserved[0].node = "r0"  # the room comes too late
        await until(lambda: all(stage.is_dead for stage in pipeline.launched))


async def test_a_process_that_was_just_given_back_ends_with_all_others(supervised: Supervise) -> None:
    async with supervised(2, standbys=1) as pipeline:
        await until(lambda: nodes_of(pipeline) == ["r0"])
        standbys = pipeline.supervisor._standbys
        stage, _ = await standbys.take()
        standbys.give_back(stage)
        standbys.close()  # before the task that ends it has begun
        assert stage.is_dead
