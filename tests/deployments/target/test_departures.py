"""Stages on draining nodes work until others have loaded in their place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from deployments.target import departures, standbys
from tests.deployments.target.conftest import Supervise


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not true():
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (departures, standbys):
        monkeypatch.setattr(module, "LOOK_S", 0.02)
    monkeypatch.setattr(departures, "AGAIN_S", 0.05)


@pytest.mark.parametrize("leaving", [1, 2])
async def test_a_stage_works_until_another_has_loaded_and_then_ends(supervised: Supervise, leaving: int) -> None:
    async with supervised() as pipeline:
        wanted, old = (await pipeline.answer()).results, pipeline.stages[leaving]
        pipeline.may_load.clear()
        pipeline.bundles.drained.add(f"n{leaving}")
        await until(lambda: len(pipeline.started) == 4)
        assert (await pipeline.answer()).results == wanted  # while the other loads
        assert pipeline.supervisor.state()["whole"]
        pipeline.may_load.set()
        await until(lambda: len(pipeline.supervisor.replacements) == 1)
        assert (await pipeline.answer()).results == wanted
        await until(lambda: old.is_dead)
        done = pipeline.supervisor.replacements[0]
        assert (done.planned, dict(done.reasons)) == (True, {leaving: "its node drains"})
        state = pipeline.supervisor.state()
        assert (state["stages"][leaving]["node"], state["draining"]) == ("r0", [f"n{leaving}"])
        assert pipeline.bundles.released == []


async def test_a_standby_makes_room_at_once(supervised: Supervise) -> None:
    async with supervised(2, standbys=1) as pipeline:
        await until(lambda: [one["ready"] for one in pipeline.supervisor.state()["standbys"]] == [True])
        pipeline.bundles.drained.add("n1")
        await until(lambda: len(pipeline.supervisor.replacements) == 1)
        assert (pipeline.supervisor.replacements[0].standbys, pipeline.supervisor.replacements[0].planned) == (1, True)
        assert pipeline.supervisor.state()["stages"][1]["node"] == "r0"


async def test_a_stage_that_dies_before_it_could_leave_is_followed_by_what_was_prepared(supervised: Supervise) -> None:
    async with supervised() as pipeline:
        wanted, old = (await pipeline.answer()).results, pipeline.stages[1]
        pipeline.may_load.clear()
        pipeline.bundles.drained.add("n1")
        await until(lambda: len(pipeline.started) == 4)
        await old.end()
        old.mark_dead("killed")
        await until(lambda: not pipeline.supervisor.state()["whole"])
        pipeline.may_load.set()
        await until(lambda: len(pipeline.supervisor.replacements) == 1)
        assert not pipeline.supervisor.replacements[0].planned
        assert pipeline.started == [0, 1, 2, 1]
        assert (await pipeline.answer()).results == wanted


async def test_a_stage_stays_while_there_is_no_room_and_a_lost_node_gives_it_room(supervised: Supervise) -> None:
    async with supervised(2) as pipeline:
        pipeline.bundles.has_room = False
        pipeline.bundles.drained.add("n1")
        await until(lambda: len(pipeline.bundles.reserved) == 1)
        assert (await pipeline.answer()).error == ""
        pipeline.bundles.own[1].node = "n9"  # its bundle has come up elsewhere
        await pipeline.lose(1)
        await until(lambda: len(pipeline.supervisor.replacements) == 1)
        assert pipeline.supervisor.state()["stages"][1]["node"] == "n9"
        await until(lambda: pipeline.bundles.released == pipeline.bundles.reserved)
        assert (await pipeline.answer()).error == ""


async def test_a_substitute_that_cannot_load_is_tried_again_and_the_stage_works_on(supervised: Supervise) -> None:
    async with supervised(2) as pipeline:
        pipeline.broken.add(1)
        pipeline.bundles.drained.add("n1")
        await until(lambda: pipeline.started.count(1) >= 3)
        assert (await pipeline.answer()).error == ""
        assert pipeline.supervisor.state()["generation"] == 1
        pipeline.broken.clear()
        await until(lambda: len(pipeline.supervisor.replacements) == 1)
        assert pipeline.supervisor.replacements[0].planned


async def test_a_pipeline_whose_owner_leaves_stays_as_it_is(supervised: Supervise) -> None:
    """Ray Serve starts another one."""
    async with supervised(2) as pipeline:
        pipeline.bundles.drained |= {"n0", "n1"}
        await until(lambda: pipeline.supervisor.state()["draining"] == ["n0", "n1"])
        await asyncio.sleep(0.2)
        assert (pipeline.started, pipeline.bundles.reserved) == ([0, 1], [])
