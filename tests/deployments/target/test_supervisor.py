"""Supervision of stages: the lost ones are replaced, and only those; the pipeline is given up when that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from deployments.pipeline.connection import Pipeline
from deployments.target import supervisor
from engine.errors import ConfigError, TargetLostError
from tests.deployments.target.conftest import Held, Supervise, prompt_step


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not true():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("victim", [0, 1, 2])
async def test_only_the_lost_stage_starts_again_and_the_answer_is_the_same(supervised: Supervise, victim: int) -> None:
    async with supervised() as pipeline:
        wanted = (await pipeline.answer()).results
        before, generation = await pipeline.supervisor.endpoints("n"), pipeline.supervisor.state()["generation"]
        await pipeline.lose(victim)
        await until(lambda: len(pipeline.supervisor.replacements) == 1)
        pipeline.supervisor.check()
        assert pipeline.started == [0, 1, 2, victim]
        assert (await pipeline.answer()).results == wanted
        after = await pipeline.supervisor.endpoints("n")
        assert pipeline.supervisor.state()["generation"] == generation + 1
        assert ((after.first != before.first), (after.last != before.last)) == (victim == 0, victim == 2)
        assert dict(pipeline.supervisor.replacements[0].reasons) == {victim: "killed"}
        assert pipeline.supervisor.state()["last_replacement"]["reasons"] == {victim: "killed"}


async def test_the_state_and_the_endpoints_say_what_the_start_took(supervised: Supervise) -> None:
    async with supervised() as pipeline:
        state, load = pipeline.supervisor.state(), (await pipeline.supervisor.endpoints("n")).load
        assert state["load_seconds"] == load.seconds
        assert load.seconds.keys() == {"plan", "connect", "ready"}
        assert load.seconds["ready"] >= load.seconds["plan"] + load.seconds["connect"]
        assert [(one["load_seconds"], one["read_bytes"]) for one in state["stages"]] == [
            (one.seconds, one.n_read) for one in load.stages
        ]


async def test_a_loop_that_is_stuck_while_pings_are_answered_is_found_by_suspicion(supervised: Supervise) -> None:
    async with supervised(s1=Held) as pipeline:
        waiting = asyncio.create_task(pipeline.answer())
        await until(lambda: pipeline.stages[1].worker.busy_since is not None)
        await pipeline.supervisor.report_hang("too early: nothing may happen")
        assert pipeline.started == [0, 1, 2]
        await asyncio.sleep(1.1)
        await pipeline.supervisor.report_hang("step 7 was not answered")
        answer = await asyncio.wait_for(waiting, 30)
        assert answer.error == ""
        assert pipeline.started == [0, 1, 2, 1]
        assert "in one step" in pipeline.supervisor.replacements[0].reasons[1]


async def test_a_suspected_stage_that_is_silent_is_replaced_and_an_idle_pipeline_is_left_alone(
    supervised: Supervise,
) -> None:
    async with supervised() as pipeline:
        await pipeline.supervisor.report_hang("no reason")
        assert pipeline.supervisor.state()["whole"]
        pipeline.stages[0].is_silent = True
        await pipeline.supervisor.report_hang("step 7 was not answered")
        await until(lambda: len(pipeline.supervisor.replacements) == 1)
        assert pipeline.started == [0, 1, 2, 0]
        assert (await pipeline.answer()).error == ""


async def test_endpoints_wait_for_a_replacement_and_health_does_not_fail_meanwhile(supervised: Supervise) -> None:
    async with supervised() as pipeline:
        old, generation = await pipeline.supervisor.endpoints("n"), pipeline.supervisor.state()["generation"]
        pipeline.may_load.clear()
        await pipeline.lose(2)
        await until(lambda: not pipeline.supervisor.state()["whole"])
        asked = asyncio.create_task(pipeline.supervisor.endpoints("n"))
        await asyncio.sleep(0.1)
        assert not asked.done()
        pipeline.supervisor.check()
        pipeline.may_load.set()
        new = await asyncio.wait_for(asked, 30)
        assert (new.last != old.last, pipeline.supervisor.state()["generation"]) == (True, generation + 1)


async def test_a_stage_that_cannot_load_again_fails_the_health_check_with_the_reason(supervised: Supervise) -> None:
    async with supervised() as pipeline:
        pipeline.broken.add(1)
        await pipeline.lose(1)
        await until(lambda: len(pipeline.supervisor.replacements) == 1)
        assert pipeline.started == [0, 1, 2, 1, 1]
        with pytest.raises(TargetLostError, match=r"stage 1 could not be replaced: .*model\.safetensors is gone"):
            pipeline.supervisor.check()
        with pytest.raises(TargetLostError, match="could not be replaced"):
            await pipeline.supervisor.endpoints("n")
        assert not any(stage.worker is not None and stage.worker.is_alive for stage in pipeline.stages.values())


async def test_calls_that_wait_for_the_endpoints_hear_at_once_that_the_pipeline_is_given_up(
    supervised: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "WAIT_S", 3600.0)
    async with supervised() as pipeline:
        pipeline.may_load.clear()
        await pipeline.lose(1)
        await until(lambda: not pipeline.supervisor.state()["whole"])
        asked = asyncio.create_task(pipeline.supervisor.endpoints("n"))
        await asyncio.sleep(0.1)
        pipeline.broken.add(1)
        pipeline.may_load.set()
        with pytest.raises(TargetLostError, match="could not be replaced"):
            await asyncio.wait_for(asked, 240)


async def test_a_replacement_that_takes_too_long_fails_the_health_check(supervised: Supervise) -> None:
    async with supervised(limit=0.3) as pipeline:
        pipeline.may_load.clear()
        pipeline.stages[0].mark_dead("killed")
        await until(lambda: len(pipeline.supervisor.replacements) == 1)
        with pytest.raises(TargetLostError, match=r"it took longer than 0\.3 s"):
            pipeline.supervisor.check()
        pipeline.may_load.set()


async def test_two_lost_stages_are_replaced_together(supervised: Supervise) -> None:
    async with supervised() as pipeline:
        wanted = (await pipeline.answer()).results
        for number in (0, 2):
            await pipeline.lose(number)
        await until(lambda: bool(pipeline.supervisor.replacements) and pipeline.supervisor.state()["whole"])
        assert sorted(pipeline.started) == [0, 0, 1, 2, 2]
        assert (await pipeline.answer()).results == wanted


async def test_a_replacement_that_shares_no_link_gives_the_pipeline_up_with_the_reason(supervised: Supervise) -> None:
    async with supervised() as pipeline:
        pipeline.transports[1] = "gloo"
        await pipeline.lose(1)
        await until(lambda: len(pipeline.supervisor.replacements) == 1)
        waiting = asyncio.create_task(pipeline.answer())  # a connection shows it
        await until(lambda: len(pipeline.supervisor.replacements) == 2)
        waiting.cancel()
        assert pipeline.started == [0, 1, 2, 1]
        with pytest.raises(TargetLostError, match="transport offers socket on one stage and gloo on the next"):
            pipeline.supervisor.check()


async def test_a_router_out_of_a_unix_sockets_reach_hears_which_flag_is_wrong(supervised: Supervise) -> None:
    async with supervised(2) as pipeline:
        with pytest.raises(ConfigError, match=r"--transport\) is unix, but the router is on another node"):
            await pipeline.supervisor.endpoints("another")


async def test_a_pipeline_that_is_replaced_stays_while_a_router_has_sequences_on_it(supervised: Supervise) -> None:
    async with supervised(2) as pipeline:
        await asyncio.wait_for(pipeline.supervisor.until_unused(60.0), 30)  # there is no router
        connection = await Pipeline.connect(await pipeline.supervisor.endpoints("n"))
        connection.send(prompt_step())
        await connection.receive()
        leaving = asyncio.create_task(pipeline.supervisor.until_unused(60.0))
        await pipeline.supervisor.until_unused(0.3)  # the grace is over
        assert not leaving.done()
        connection.close()  # the sequence has moved to another router
        await asyncio.wait_for(leaving, 30)
