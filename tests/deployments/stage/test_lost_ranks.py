"""A tensor-parallel rank is lost: its process is replaced, the others keep their weights, and no text changes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from deployments.stage.attention_rows import RowKeeper
from engine.errors import RankLostError
from engine.parallel.leader import _RankComputing
from engine.request import Request
from engine.step import StepResult, encode
from tests.deployments.conftest import Serving
from tests.support.waiting import wait_until_async

MakeJob = Callable[..., Request]
METHODS = ("autoregressive", "pld", "spectra-core", "token-recycling")


@pytest.mark.parametrize(("n_stages", "n_ranks", "stage"), [(1, 2, 0), (2, 2, 0), (2, 2, 1), (1, 4, 0)], ids=str)
async def test_streams_continue_with_identical_output_after_a_lost_rank(
    n_stages: int, n_ranks: int, stage: int, serving: Serving, make_job: MakeJob
) -> None:
    async with serving(n_stages, n_ranks=n_ranks) as served:
        answers = [served.begin(make_job(n, METHODS[n % 4], temperature=0.8 * (n % 2))) for n in range(8)]
        await wait_until_async(lambda: all(answer.events for answer in answers))
        others = [worker._stage for worker in served.stages._all]
        exchanges = [leader._stage._exchange for leader in served.stages.workers]  # type: ignore[attr-defined]
        lost = served.stages.followers[stage][-1]
        others.remove(lost._stage)
        lost.close()
        await wait_until_async(lambda: not served.router.lanes[0].is_up)
        served.stages.replace_rank(stage, n_ranks - 1)
        await served.compare(answers)
        assert [one for one in (worker._stage for worker in served.stages._all) if one in others] == others
        after = [leader._stage._exchange for leader in served.stages.workers]  # type: ignore[attr-defined]
        assert [i for i in range(n_stages) if after[i] is not exchanges[i]] == [stage]


async def test_a_rank_that_fails_in_a_step_is_connected_again(
    serving: Serving, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process goes on, so nothing has to be replaced: the leader connects to the same ranks again."""
    async with serving(2, n_ranks=2) as served:
        answers = [served.begin(make_job(n, METHODS[n % 4])) for n in range(4)]
        await wait_until_async(lambda: all(answer.events for answer in answers))
        stage: Any = served.stages.followers[1][0]._stage
        forward, failed = stage.forward, []

        def fail_once(*arguments: Any) -> Any:
            if not failed:
                failed.append(True)
                raise RuntimeError("out of memory")
            return forward(*arguments)

        monkeypatch.setattr(stage, "forward", fail_once)
        await served.compare(answers)
        assert failed


async def test_a_router_that_reconnects_keeps_the_ranks_connected(serving: Serving, make_job: MakeJob) -> None:
    async with serving(1, n_ranks=2) as served:
        await served.check(make_job(1))
        leader: Any = served.stages.workers[0]._stage
        exchange = leader._exchange
        another = served.another_router()
        another.start()
        try:
            served.router, first = another, served.router
            await served.check(make_job(2), make_job(3, "pld"))
        finally:
            served.router = first
            await another.close()
        assert leader._exchange is exchange


async def test_a_lost_rank_does_not_end_its_leader_when_the_device_is_awaited(serving: Serving) -> None:
    async with serving(1, n_ranks=2) as served:
        worker: Any = served.stages.workers[0]
        computing = _RankComputing(Done(), SimpleNamespace(is_lost=True))  # type: ignore[arg-type]
        worker._progress.leave_to_device(computing)
        worker._settle()
        assert worker.is_alive
        with pytest.raises(RankLostError):
            computing.wait()


class Done:
    """A device that has finished."""

    def wait(self) -> float:
        return 0.1


def test_attention_rows_of_a_lost_rank_end_the_connection_and_fail_no_request() -> None:
    def lose(_: object) -> Any:
        raise RankLostError("a rank is lost")

    keeper, channel = RowKeeper(), Mock()
    keeper.keep(3, SimpleNamespace(rows=lose))
    channel.receive.return_value = encode(StepResult(3, [], 0.0))
    keeper.serve(channel)
    channel.send.assert_not_called()
    channel.close.assert_called_once()
