"""Processes that wait for a stage to be lost: taken, replaced, moved to the bundle that fits best, given back."""

from __future__ import annotations

import pytest

from deployments.target_model.bundles import NODE_LABEL, selectors_of
from tests.deployments.target_model.conftest import Supervise
from tests.support.waiting import wait_until_async


@pytest.mark.parametrize("has_gcs", [True, False])
async def test_a_standby_becomes_the_lost_stage_and_another_waits_in_its_bundle(
    has_gcs: bool, supervised: Supervise, caplog: pytest.LogCaptureFixture
) -> None:
    async with supervised(standbys=1) as pipeline:
        await pipeline.standbys_on("r0")
        assert pipeline.bundles.away_from == {"n0", "n1", "n2"}
        expected = (await pipeline.answer()).results
        pipeline.bundles.has_gcs = has_gcs
        if not has_gcs:
            await wait_until_async(lambda: "cannot be checked" in caplog.text)
        await pipeline.lose(1)
        assert (await pipeline.replaced()).standbys == 1
        assert (await pipeline.answer()).results == expected
        assert pipeline.state["stages"][1]["node"] == "r0"
        pipeline.bundles.has_gcs = True
        await pipeline.standbys_on("n1")
        assert pipeline.started == [0, 1, 2, 1]
        assert pipeline.bundles.released == []
    assert caplog.text.count("cannot be checked") == (not has_gcs)


async def test_a_standby_that_dies_or_cannot_start_is_replaced_in_its_bundle(supervised: Supervise) -> None:
    async with supervised(2, standbys=1) as pipeline:
        await pipeline.standbys_on("r0")
        dead = pipeline.launched[-1]
        pipeline.n_cannot_start = 3
        dead.mark_dead("killed")
        await wait_until_async(lambda: pipeline.standby_nodes == ["r0"] and len(pipeline.launched) == 7)
        assert dead.is_dead
        assert (len(pipeline.bundles.reserved), pipeline.supervisor.replacements) == (1, [])
        assert (await pipeline.answer()).error == ""


async def test_a_standby_leaves_a_draining_node_and_gives_its_bundle_back(supervised: Supervise) -> None:
    async with supervised(2, standbys=1) as pipeline:
        await pipeline.standbys_on("r0")
        leaving = pipeline.launched[-1]
        pipeline.bundles.drained.add("r0")
        await pipeline.standbys_on("r1")
        await wait_until_async(lambda: leaving.is_dead)
        await wait_until_async(lambda: pipeline.bundles.released == pipeline.bundles.reserved[:1])


async def test_a_standby_replaces_a_leaving_stage_and_the_next_one_moves_to_a_bundle_that_becomes_free(
    supervised: Supervise,
) -> None:
    async with supervised(2, standbys=1) as pipeline:
        await pipeline.standbys_on("r0")
        pipeline.bundles.drained.add("n1")
        done = await pipeline.replaced()
        assert (done.standbys, done.planned) == (1, True)
        assert pipeline.state["stages"][1]["node"] == "r0"
        await pipeline.standbys_on("r1")  # not on the draining node
        pipeline.bundles.own[1].node = "n9"  # the old one has gone
        await pipeline.standbys_on("n9")
        await wait_until_async(lambda: pipeline.bundles.released == pipeline.bundles.reserved[1:])
        assert len(pipeline.supervisor.replacements) == 1


async def test_a_loss_does_not_wait_for_a_standby_without_room(supervised: Supervise) -> None:
    async with supervised(2, standbys=1) as pipeline:
        await pipeline.standbys_on("r0")
        pipeline.bundles.has_room = False
        pipeline.bundles.drained.add("r0")
        await wait_until_async(lambda: len(pipeline.bundles.reserved) == 2)
        await pipeline.lose(1)
        await pipeline.replaced()
        assert pipeline.state["stages"][1]["node"] == "n1"
        pipeline.bundles.reserved[1].node = "r1"
        await pipeline.standbys_on("r1")


@pytest.mark.parametrize("why", ["the owner's node drains", "the owner is being stopped"])
async def test_a_pipeline_that_is_about_to_end_gives_up_its_standbys(supervised: Supervise, why: str) -> None:
    async with supervised(2, standbys=1) as pipeline:
        await pipeline.standbys_on("r0")
        if why == "the owner's node drains":  # then Serve starts another pipeline
            pipeline.bundles.drained |= {"n0", "n1"}
        else:
            await pipeline.supervisor.wait_until_unused(0.05)
        await wait_until_async(lambda: pipeline.bundles.released == pipeline.bundles.reserved)
        assert (pipeline.standby_nodes, pipeline.started) == ([], [0, 1])
        await pipeline.lose(1)  # is replaced all the same
        await pipeline.replaced()
        assert (await pipeline.answer()).error == ""


@pytest.mark.parametrize(
    ("here", "away_from", "label"),
    [(None, (), None), (None, {"b", "a"}, "!in(a,b)"), ("a", (), "a"), ("a", {"b"}, "a")],
)
def test_a_bundle_is_reserved_on_this_node_or_away_from_others(
    here: str | None, away_from: set[str], label: str | None
) -> None:
    assert selectors_of(here, away_from) == (None if label is None else [{NODE_LABEL: label}])
