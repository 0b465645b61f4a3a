"""Several pipelines on one router: sequences of a lost lane continue, there or elsewhere."""

from __future__ import annotations

from tests.deployments.conftest import METHODS, ServedPipelines, Serving, job_of, patient
from tests.deployments.slow_stage import GATE, Gated
from tests.support.metrics import values
from tests.support.waiting import wait_until_async


def n_live(served: ServedPipelines) -> list[int]:
    """Sequences of every lane."""
    return [len(lane.scheduler.sequences) for lane in served.router.lanes]


async def all_run(served: ServedPipelines, n: int) -> None:
    """Wait until ``n`` sequences run in every lane."""
    await wait_until_async(lambda: all(lane.scheduler.n_running == n for lane in served.router.lanes))


async def test_streams_of_a_lost_lane_continue_in_another_and_share_the_lane_that_is_back(
    serving: Serving,
) -> None:
    options, limits = patient(failover=0.0), {"max_sequences": 3, "prefill_chunk": 8}
    async with serving(2, [Gated] * 2, n_lanes=2, options=options, **limits) as served:
        await served.up()
        GATE.close(after=20)
        answers = [
            served.begin(job_of(n, METHODS[n % 4], temperature=0.8 * (n % 2), max_tokens=60, stop_ids=()))
            for n in range(8)
        ]
        await all_run(served, 3)
        assert n_live(served) == [4, 4]  # three run and one waits in each
        await served.lose(lane=0)
        await wait_until_async(lambda: n_live(served) == [0, 8])
        state = await served.router.state()
        assert (state["ready"], state["lanes_up"], state["lane-0.pipelines_lost"]) == (True, 1, 1)
        assert values(served.router.metrics_text(), "spectra:sequences_moved_total") == [4]
        served.replace(lane=0)
        await wait_until_async(lambda: n_live(served)[0] >= 2)  # of those that wait
        GATE.open()
        await served.compare(answers)
        state = await served.settled()
        assert (state["lanes"], state["lanes_up"]) == (2, 2)
        assert state["blocks"] == sum(lane.scheduler.blocks.n_blocks for lane in served.router.lanes)


async def test_a_lane_that_is_soon_back_keeps_its_sequences(serving: Serving) -> None:
    async with serving(1, [Gated], n_lanes=2, options=patient(failover=3600.0)) as served:
        await served.up()
        GATE.close(after=10)
        answers = [served.begin(job_of(n, "pld", max_tokens=60, stop_ids=())) for n in range(4)]
        await all_run(served, 2)
        await served.lose(lane=1)
        assert n_live(served) == [2, 2]
        served.replace(lane=1)
        await served.up()
        GATE.open()
        await served.compare(answers)
        text = served.router.metrics_text()
    assert values(text, "spectra:sequences_moved_total") == [0]
    assert values(text, "spectra:sequences_prefilled_again_total") == [2]
    assert values(text, "spectra:recovery_seconds_count") == [1]
