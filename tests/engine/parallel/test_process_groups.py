"""A process group exchanges the sums of ranks: texts, lost ranks, new connections. Gloo replaces NCCL here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from engine.errors import RankLostError
from engine.parallel import exchanges
from engine.parallel.exchanges import GroupExchange
from engine.request import Request
from engine.sampling.params import SamplingParams
from tests.support.engines import complete_all, make_engine
from tests.support.rank_threads import ThreadedTarget, connect_threads, threaded_target
from tests.support.tiny_models import random_prompts, reference_tokens
from tests.support.waiting import LIMIT_S, wait_until

N_TOKENS = 8
NEVER = 1 << 40  # rows


def jobs() -> list[Request]:
    return [Request(text, SamplingParams(max_tokens=N_TOKENS), "pld") for text in random_prompts(2)]


def check_texts(target: ThreadedTarget, family: str) -> None:
    done = complete_all(make_engine(target), jobs())
    target.close()
    assert [one.token_ids for one in done] == [reference_tokens(family, tuple(one.prompt), N_TOKENS) for one in jobs()]


@pytest.mark.parametrize(
    ("family", "ranks", "stages", "by_rows"),
    [("llama", 2, 1, 1), ("gemma3", 2, 2, NEVER), ("mistral", 4, 1, 32)],
    ids=["rows completed by shares", "rows completed everywhere", "both"],
)
def test_greedy_text_equals_generate(
    family: str, ranks: int, stages: int, by_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "BY_ROWS", by_rows)
    check_texts(threaded_target(family, ranks, stages, "gloo"), family)


def fail(*_: object) -> None:
    raise RuntimeError("out of memory")


def stop(*_: object) -> None:
    threading.Event().wait(2 * LIMIT_S)  # longer than the test


@pytest.mark.parametrize(
    ("backend", "fault"),
    [
        ("", fail),
        *(pytest.param(*case, marks=pytest.mark.matrix) for case in [("", stop), ("gloo", fail), ("gloo", stop)]),
    ],
)
def test_a_rank_that_leaves_an_exchange_ends_that_of_all_others(
    backend: str, fault: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader raises, all followers end, and the same ranks can be connected again."""
    if fault is stop or backend:  # gloo's waits end at this limit alone
        monkeypatch.setattr(exchanges, "WAIT_S", 8.0)
        monkeypatch.setattr("engine.parallel.leader.ANSWER_S", 8.0)
    target = threaded_target("llama", 4, 1, backend)
    [stage], [ranks] = target._stages, target.ranks
    engine = make_engine(target)
    engine.submit(jobs()[0])
    with monkeypatch.context() as patch:
        patch.setattr(ranks[2], "forward", fault)
        with pytest.raises(RankLostError):
            engine.step()
    followed: Any = stage
    assert not followed.is_connected
    followed.connect(connect_threads(ranks[1:]), backend)
    wait_until(lambda: not any(rank.n_sequences for rank in ranks[1:]))
    followed.reset()
    check_texts(target, "llama")


def test_a_closed_link_ends_the_exchanges_of_both_ends() -> None:
    target = threaded_target("llama", 2, 1, "gloo")
    stage: Any = target._stages[0]
    ends = [rank.ranks for rank in target.ranks[0]]
    wait_until(lambda: all(type(end.exchange) is GroupExchange for end in ends))
    assert not any(end.connected.is_lost for end in ends)
    stage._links[0].close()
    wait_until(lambda: all(end.connected.is_lost for end in ends))
    with pytest.raises(RankLostError):
        stage.reset()


def test_a_group_that_lacks_a_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "WAIT_S", 1.0)
    target = threaded_target("llama", 2)
    stage: Any = target._stages[0]
    links = connect_threads(target.ranks[0][1:])
    with monkeypatch.context() as patch:
        patch.setattr("engine.parallel.follower.GroupExchange", fail)
        with pytest.raises(RankLostError):
            stage.connect(links, "gloo")
    stage.connect(connect_threads(target.ranks[0][1:]))
    check_texts(target, "llama")
    # Gloo still waits for the other rank; a process that ends meanwhile is aborted by the C++ runtime.
    wait_until(lambda: not any(thread.name == "process-group" for thread in threading.enumerate()))
