"""How a router uses the answers of a target deployment."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Generator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import ray
from grpc.aio import AioRpcError, Metadata

from deployments.pipeline.endpoints import Endpoints
from deployments.pipeline.leadership import INCARNATION, PipelineInUseError, RouterStatus
from deployments.pipeline.replacement_metrics import ReplacementMetrics
from engine.errors import ConfigError, TargetLostError
from engine.model.identity import ModelIdentity
from engine.step_cost import StepCosts
from engine.target_model.info import TargetInfo
from tests.support.virtual_pipeline import INFO
from tests.support.waiting import wait_until_async

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing Serve warns
    from deployments.router import target_client
    from deployments.router.target_client import ServeTarget, first_endpoints

WRONG = "transport (--transport) is unix, but the router is on another node"
COSTS = StepCosts({1: ((1, 2), (0.1, 0.2))})


class Response:
    """The response of a call; can be awaited once."""

    def __init__(self, answer: BaseException | object) -> None:
        self._answer = answer

    def __await__(self) -> Generator[Any, None, object]:
        yield from asyncio.sleep(0).__await__()
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    def cancel(self) -> None:
        """It has ended."""


def target_of(*answers: BaseException | object) -> tuple[ServeTarget, list[tuple[object, ...]]]:
    """A target that returns these answers in turn, the last one for ever; and the arguments of its calls."""
    asked: list[tuple[object, ...]] = []
    left = [*answers]

    def remote(*arguments: object) -> Response:
        asked.append(arguments)
        return Response(left.pop(0) if len(left) > 1 else left[0])

    method = SimpleNamespace(remote=remote)
    handle: Any = SimpleNamespace(deployment_name="Target", endpoints=method, hold=method)
    return ServeTarget(handle, ReplacementMetrics("m")), asked


@pytest.fixture(autouse=True)
def connected(monkeypatch: pytest.MonkeyPatch) -> list[Endpoints]:
    """The endpoints of all pipelines that a router connects to; one called "stale" is gone."""
    found: list[Endpoints] = []

    async def connect(endpoints: Endpoints) -> Endpoints:
        if endpoints.first == "stale":
            raise TargetLostError("gone")
        found.append(endpoints)
        return endpoints

    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "n"))
    monkeypatch.setattr(target_client, "MISCONFIGURED_S", 0.0)
    monkeypatch.setattr(target_client, "Pipeline", SimpleNamespace(connect=connect))
    return found


def at(first: str, info: TargetInfo = INFO) -> Endpoints:
    return Endpoints(first, "last", b"secret", info)


async def test_a_transport_that_cannot_reach_the_target_fails_the_start_of_a_router_without_rays_traceback() -> None:
    wrapped: Any = ray.exceptions.RayTaskError("endpoints", "a long traceback", ConfigError(WRONG))
    for error in (ConfigError(WRONG), wrapped.as_instanceof_cause()):
        target, _ = target_of(error)
        for start in (first_endpoints([target]), target.connect(INFO)):
            with pytest.raises(ConfigError) as caught:
                await start
            assert str(caught.value) == WRONG


async def test_a_router_that_serves_logs_a_wrong_transport_once_and_waits_for_the_next_target(
    caplog: pytest.LogCaptureFixture, connected: list[Endpoints]
) -> None:
    target, asked = target_of(ConfigError(WRONG), ConfigError(WRONG), at("stale"), ConfigError(WRONG), at("up"))
    with caplog.at_level(logging.ERROR):
        await target.client(INFO, COSTS).connect()
    assert connected == [at("up")]
    assert [record.getMessage() for record in caplog.records] == [f"Target cannot be used: {WRONG}"]
    assert target.problem == ""
    has_led = (False, False, False, True, True)  # from the first answer on
    assert asked == [("n", RouterStatus(INCARNATION, True, led, COSTS)) for led in has_led]


async def test_a_router_that_starts_leaves_a_pipeline_to_the_router_that_serves(connected: list[Endpoints]) -> None:
    target, asked = target_of(replace(at("up"), leader=RouterStatus("another", is_ready=True, costs=COSTS)))
    with pytest.raises(PipelineInUseError) as led:
        await target.connect(INFO)
    assert led.value.costs == COSTS
    assert connected == []
    assert asked == [("n", RouterStatus(INCARNATION))]  # it does not claim to be ready


@pytest.mark.parametrize(
    "error",
    [
        ray.exceptions.RayActorError(),
        AioRpcError(grpc.StatusCode.INTERNAL, Metadata(), Metadata()),
        asyncio.CancelledError("by Serve"),
    ],
)
async def test_a_call_without_an_answer_is_repeated_and_a_pipeline_stays_held(error: BaseException) -> None:
    target, asked = target_of(error, at("up"))
    assert await target.endpoints() == at("up")
    assert len(asked) == 2
    target, asked = target_of(RuntimeError("a bug of Serve"), error, 0)
    holding = asyncio.create_task(target.hold())
    await wait_until_async(lambda: len(asked) >= 4)
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (replace(INFO, identity=ModelIdentity(weights="ab" * 16)), "weights abababababab instead of unknown"),
        (replace(INFO, identity=ModelIdentity(tokenizer="cd" * 16)), "tokenizer cdcdcdcdcdcd instead of unknown"),
        (replace(INFO, spec=replace(INFO.spec, eos_ids=(7,))), "another architecture"),
        (replace(INFO, max_model_len=128), f"max_model_len 128 instead of {INFO.max_model_len}"),
    ],
)
async def test_a_pipeline_of_another_target_is_refused_until_the_routers_own_is_back(
    found: TargetInfo, said: str, caplog: pytest.LogCaptureFixture, connected: list[Endpoints]
) -> None:
    target, _ = target_of(at("other", found))
    with pytest.raises(ConfigError, match=said):
        await target.connect(INFO)
    target, _ = target_of(at("other", found), at("other", found), at("ours"))
    with caplog.at_level(logging.ERROR):
        await target.client(INFO).connect()
    assert connected == [at("ours")]
    assert (target.problem, target.has_other_model) == ("", False)
    expected = f"its target is not the one that this router serves: {said}"
    assert [record.getMessage() for record in caplog.records] == [f"Target cannot be used: {expected}"]
