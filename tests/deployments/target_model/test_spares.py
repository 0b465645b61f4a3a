"""Stages on draining nodes work until others have loaded in their place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deployments.target_model.elastic import elastic, while_held
from tests.deployments.target_model.conftest import Supervise
from tests.support.waiting import wait_until_async


@pytest.mark.parametrize("leaving", [1, 2])
async def test_a_stage_on_a_draining_node_works_until_another_has_loaded(supervised: Supervise, leaving: int) -> None:
    async with supervised() as pipeline:
        expected, old = (await pipeline.answer()).results, pipeline.stages[leaving]
        pipeline.may_load.clear()
        pipeline.bundles.drained.add(f"n{leaving}")
        await wait_until_async(lambda: len(pipeline.started) == 4)
        assert (await pipeline.answer()).results == expected  # while the other loads
        assert pipeline.state["whole"]
        pipeline.may_load.set()
        done = await pipeline.replaced()
        assert (await pipeline.answer()).results == expected
        await wait_until_async(lambda: old.is_dead)
        assert (done.planned, dict(done.reasons)) == (True, {leaving: "its node drains"})
        assert (pipeline.state["stages"][leaving]["node"], pipeline.state["draining"]) == ("r0", [f"n{leaving}"])
        assert pipeline.bundles.released == []


async def test_the_prepared_substitute_replaces_a_stage_that_dies_before_it_leaves(supervised: Supervise) -> None:
    async with supervised() as pipeline:
        expected = (await pipeline.answer()).results
        old = pipeline.stages[1]
        pipeline.may_load.clear()
        pipeline.bundles.drained.add("n1")
        await wait_until_async(lambda: len(pipeline.started) == 4)
        await old.end()
        old.mark_dead("killed")
        await wait_until_async(lambda: not pipeline.state["whole"])
        pipeline.may_load.set()
        assert not (await pipeline.replaced()).planned
        assert pipeline.started == [0, 1, 2, 1]
        assert (await pipeline.answer()).results == expected


async def test_a_stage_stays_while_there_is_no_room_elsewhere(supervised: Supervise) -> None:
    async with supervised(2) as pipeline:
        pipeline.bundles.has_room = False
        pipeline.bundles.drained.add("n1")
        await wait_until_async(lambda: len(pipeline.bundles.reserved) == 1)
        assert (await pipeline.answer()).error == ""
        pipeline.bundles.own[1].node = "n9"  # the node is lost, and its bundle has come up elsewhere
        await pipeline.lose(1)
        await pipeline.replaced()
        assert pipeline.state["stages"][1]["node"] == "n9"
        await wait_until_async(lambda: pipeline.bundles.released == pipeline.bundles.reserved)
        assert (await pipeline.answer()).error == ""


async def test_a_substitute_that_cannot_load_is_tried_again_while_the_stage_works(supervised: Supervise) -> None:
    async with supervised(2) as pipeline:
        pipeline.broken.add(1)
        pipeline.bundles.drained.add("n1")
        await wait_until_async(lambda: pipeline.started.count(1) >= 3)
        assert (await pipeline.answer()).error == ""
        assert pipeline.state["generation"] == 1
        pipeline.broken.clear()
        assert (await pipeline.replaced()).planned


def test_an_elastic_pipeline_runs_while_calls_run_or_wait() -> None:
    scaling = elastic()["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (0, 1)
    for requests, replicas in ((0, 0), (0.04, 1), (1, 1), (7.5, 1)):
        context: Any = SimpleNamespace(total_num_requests=requests)
        assert while_held(context) == (replicas, {})
    assert set(while_held.__code__.co_names) == {"int", "total_num_requests"}  # it runs without this package
