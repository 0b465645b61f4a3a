"""Supervision of stages: the lost ones are replaced, and only those; the pipeline is given up when that fails."""

from __future__ import annotations

import asyncio

import pytest

from deployments.pipeline.connection import Pipeline
from deployments.target_model import diagnosis, supervisor
from engine.errors import ConfigError, TargetLostError
from tests.deployments.slow_stage import GATE
from tests.deployments.target_model.conftest import Supervise, prompt_step
from tests.support.waiting import LIMIT_S, wait_until_async


@pytest.mark.parametrize("victims", [(0,), (1,), (2,), (0, 2)])
async def test_only_lost_stages_start_again_and_the_answer_is_the_same(
    supervised: Supervise, victims: tuple[int, ...]
) -> None:
    async with supervised() as pipeline:
        expected = (await pipeline.answer()).results
        before = await pipeline.supervisor.endpoints("n")
        assert before.load.seconds.keys() == {"plan", "connect", "ready"}
        with pytest.raises(ConfigError, match=r"--transport\) is unix, but the router is on another node"):
            await pipeline.supervisor.endpoints("another")
        await pipeline.lose(*victims)
        await wait_until_async(lambda: bool(pipeline.supervisor.replacements) and pipeline.state["whole"])
        pipeline.supervisor.check()
        assert sorted(pipeline.started) == sorted([0, 1, 2, *victims])
        assert (await pipeline.answer()).results == expected
        after, done = await pipeline.supervisor.endpoints("n"), pipeline.supervisor.replacements
        assert pipeline.state["generation"] == 1 + len(done)
        assert ((after.first != before.first), (after.last != before.last)) == (0 in victims, 2 in victims)
        assert {i: reason for one in done for i, reason in one.reasons.items()} == dict.fromkeys(victims, "killed")
        assert pipeline.state["last_replacement"]["reasons"] == dict(done[-1].reasons)
        assert done[-1].standbys == 0
        assert (pipeline.bundles.reserved, len(pipeline.launched)) == ([], 3 + len(victims))


async def test_a_stage_stuck_in_a_step_is_replaced_when_a_router_reports_it(
    supervised: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervised() as pipeline:
        GATE.close(after=1)
        waiting = asyncio.create_task(pipeline.answer())
        await wait_until_async(lambda: GATE.is_holding)
        monkeypatch.setattr(diagnosis, "SUSPECT_S", LIMIT_S)
        await pipeline.supervisor.report_hang("too early")
        assert pipeline.started == [0, 1, 2]
        monkeypatch.setattr(diagnosis, "SUSPECT_S", 0.0)
        await pipeline.supervisor.report_hang("step 7 was not answered")
        assert "in one step" in (await pipeline.replaced()).reasons[1]
        GATE.open()
        assert (await waiting).error == ""
        assert pipeline.started == [0, 1, 2, 1]


async def test_a_reported_stage_that_is_silent_is_replaced_and_an_idle_pipeline_is_left_alone(
    supervised: Supervise,
) -> None:
    async with supervised() as pipeline:
        await pipeline.supervisor.report_hang("no reason")
        assert pipeline.state["whole"]
        pipeline.stages[0].is_silent = True
        await pipeline.supervisor.report_hang("step 7 was not answered")
        await pipeline.replaced()
        assert pipeline.started == [0, 1, 2, 0]
        assert (await pipeline.answer()).error == ""


@pytest.mark.parametrize("fails", [False, True])
async def test_calls_for_the_endpoints_wait_for_the_end_of_a_replacement(
    fails: bool, supervised: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "WAIT_S", LIMIT_S)
    async with supervised() as pipeline:
        old = await pipeline.supervisor.endpoints("n")
        pipeline.may_load.clear()
        await pipeline.lose(2)
        await wait_until_async(lambda: not pipeline.state["whole"])
        asked = asyncio.create_task(pipeline.supervisor.endpoints("n"))
        await asyncio.sleep(0)
        assert not asked.done()
        pipeline.supervisor.check()
        pipeline.broken |= {2} if fails else set()
        pipeline.may_load.set()
        if fails:
            with pytest.raises(TargetLostError, match="could not be replaced"):
                await asked
        else:
            assert (await asked).last != old.last


async def test_a_pipeline_is_given_up_with_the_reason_when_a_stage_cannot_load_again(supervised: Supervise) -> None:
    async with supervised() as pipeline:
        pipeline.broken.add(1)
        await pipeline.lose(1)
        await pipeline.replaced()
        assert pipeline.started == [0, 1, 2, 1, 1]
        reason = r"stage 1 could not be replaced: .*model\.safetensors is gone"
        with pytest.raises(TargetLostError, match=reason):
            pipeline.supervisor.check()
        with pytest.raises(TargetLostError, match=reason):
            await pipeline.supervisor.endpoints("n")
        await wait_until_async(lambda: not pipeline.is_alive)


async def test_a_pipeline_is_given_up_when_a_replacement_takes_too_long_and_a_late_process_is_ended(
    supervised: Supervise,
) -> None:
    async with supervised(2, limit=0.05) as pipeline:
        pipeline.bundles.drained.add("n1")
        pipeline.bundles.has_room = False
        await wait_until_async(lambda: len(pipeline.bundles.reserved) == 1)
        await pipeline.lose(1)
        await pipeline.replaced()
        with pytest.raises(TargetLostError, match=r"it took longer than 0\.05 s"):
            pipeline.supervisor.check()
        pipeline.bundles.reserved[0].node = "r0"  # the room comes too late
        await wait_until_async(lambda: all(stage.is_dead for stage in pipeline.launched))


async def test_a_pipeline_is_given_up_when_a_replacement_shares_no_link(supervised: Supervise) -> None:
    async with supervised() as pipeline:
        pipeline.transports[1] = "gloo"
        await pipeline.lose(1)
        await pipeline.replaced()
        waiting = asyncio.create_task(pipeline.answer())  # a connection shows it
        await pipeline.replaced(2)
        waiting.cancel()
        assert pipeline.started == [0, 1, 2, 1]
        with pytest.raises(TargetLostError, match="transport offers socket on one stage and gloo on the next"):
            pipeline.supervisor.check()


async def test_a_pipeline_that_is_being_replaced_stays_while_a_router_has_sequences_on_it(
    supervised: Supervise,
) -> None:
    async with supervised(2) as pipeline:
        await pipeline.supervisor.wait_until_unused(LIMIT_S)  # there is no router
        connection = await Pipeline.connect(await pipeline.supervisor.endpoints("n"))
        connection.send(prompt_step())
        await connection.receive()
        leaving = asyncio.create_task(pipeline.supervisor.wait_until_unused(LIMIT_S))
        await pipeline.supervisor.wait_until_unused(0.05)  # the grace is over
        assert not leaving.done()
        connection.close()
        await leaving


@pytest.mark.parametrize("wrong", ["weights", "plan", "transport"])
async def test_a_pipeline_that_cannot_start_reports_why_and_leaves_no_stage(wrong: str, supervised: Supervise) -> None:
    async with supervised(is_started=False) as pipeline:
        error: type[Exception] = ConfigError
        if wrong == "weights":
            pipeline.broken.add(1)
            error, reason = TargetLostError, r"model\.safetensors is gone"
        elif wrong == "plan":
            pipeline.stages[0].refusal = reason = "layer_split is 1,2"
        else:
            pipeline.stages[1].transport, reason = "gloo", r"transport offers .* on one stage and .* on the next"
        with pytest.raises(error, match=reason):
            await pipeline.supervisor.start()
        assert not pipeline.is_alive
        assert all(stage.is_dead for stage in pipeline.launched)
