"""What a router makes of what a target says of itself."""

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
from deployments.pipeline.replacement_seconds import ReplacementSeconds
from engine.errors import ConfigError, TargetLostError
from engine.model.identity import ModelIdentity
from engine.step_cost import StepCosts
from engine.target.info import TargetInfo
from tests.support.virtual_pipeline import INFO

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing Serve warns
    from deployments.router import target_client
    from deployments.router.target_client import ServeTarget, first_endpoints

WRONG = "transport (--transport) is unix, but the router is on another node"


class Response:
    """Of a call; can be awaited once."""

    def __init__(self, answer: BaseException | object) -> None:
        self._answer = answer

    def __await__(self) -> Generator[Any, None, object]:
        yield from asyncio.sleep(0).__await__()
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    def cancel(self) -> None:
        """It has ended."""


class Handle:
    """A deployment handle whose target answers what the test says, and remembers what it was asked."""

    def __init__(self, *answers: BaseException | object) -> None:
        self.deployment_name = "Target"
        self.asked: list[tuple[object, ...]] = []
        self.endpoints = self.hold = SimpleNamespace(remote=self._remote)
        self._answers = list(answers)

    def _remote(self, *arguments: object) -> Response:
        self.asked.append(arguments)
        return Response(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])


@pytest.fixture(autouse=True)
def on_node_n(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "n"))


def at(first: str, info: TargetInfo = INFO) -> Endpoints:
    return Endpoints(first, "last", b"secret", info)


def target_of(handle: Handle) -> ServeTarget:
    return ServeTarget(handle, ReplacementSeconds("m"))  # type: ignore[arg-type]


async def test_a_transport_without_a_way_fails_a_router_that_starts() -> None:
    handle = Handle(ConfigError(WRONG))
    with pytest.raises(ConfigError, match="--transport"):
        await first_endpoints([target_of(handle)])
    with pytest.raises(ConfigError, match="--transport"):
        await target_of(handle).connect(INFO)
    assert len(handle.asked) == 2


async def test_what_ray_wraps_is_told_without_its_traceback() -> None:
    wrapped: Any = ray.exceptions.RayTaskError("endpoints", "a long traceback", ConfigError(WRONG))
    with pytest.raises(ConfigError) as caught:
        await target_of(Handle(wrapped.as_instanceof_cause())).endpoints()
    assert str(caught.value) == WRONG


async def test_a_router_that_serves_says_once_what_is_wrong_and_hopes_for_the_next_target(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(target_client, "MISCONFIGURED_S", 0.0)
    pipeline = object()

    async def connect(endpoints: Endpoints) -> object:
        if endpoints.first == "stale":
            raise TargetLostError("gone")
        return pipeline

    monkeypatch.setattr(target_client, "Pipeline", SimpleNamespace(connect=connect))
    handle = Handle(ConfigError(WRONG), ConfigError(WRONG), at("stale"), ConfigError(WRONG), at("up"))
    target = target_of(handle)
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(240):
            assert await target.client(INFO).connect() is pipeline
    assert [record.getMessage() for record in caplog.records] == [f"Target cannot be used: {WRONG}"]
    assert target.trouble == ""
    has_led = (False, False, False, True, True)  # from the first answer on
    assert handle.asked == [("n", RouterStatus(INCARNATION, True, led)) for led in has_led]


async def test_a_router_that_starts_connects_to_no_pipeline_that_another_serves_on() -> None:
    costs = StepCosts({1: ((1, 2), (0.1, 0.2))})
    handle = Handle(replace(at("up"), leader=RouterStatus("another", is_ready=True, costs=costs)))
    with pytest.raises(PipelineInUseError) as led:
        await target_of(handle).connect(INFO)
    assert led.value.costs == costs


async def test_the_router_that_serves_leaves_its_step_times_with_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(_: Endpoints) -> object:
        return None

    monkeypatch.setattr(target_client, "Pipeline", SimpleNamespace(connect=connect))
    costs, handle = StepCosts({1: ((1, 2), (0.1, 0.2))}), Handle(at("up"))
    await target_of(handle).client(INFO, costs).connect()
    assert handle.asked == [("n", RouterStatus(INCARNATION, is_ready=True, costs=costs))]


@pytest.mark.parametrize(
    "error",
    [
        ray.exceptions.RayActorError(),
        AioRpcError(grpc.StatusCode.INTERNAL, Metadata(), Metadata()),
        asyncio.CancelledError("by Serve"),
    ],
)
async def test_a_call_that_gets_no_answer_is_repeated_whatever_ended_it(error: BaseException) -> None:
    handle = Handle(error, at("up"))
    assert await target_of(handle).endpoints() == at("up")
    assert len(handle.asked) == 2


async def test_a_pipeline_stays_held_whatever_ends_a_call() -> None:
    handle = Handle(RuntimeError("a bug of Serve"), asyncio.CancelledError("by Serve"), 0)
    holding = asyncio.create_task(target_of(handle).hold())
    async with asyncio.timeout(240):
        while len(handle.asked) < 4:
            await asyncio.sleep(0.01)
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding


async def test_a_router_that_starts_does_not_say_that_it_is_ready() -> None:
    handle = Handle(at("first"))
    await first_endpoints([target_of(handle)])
    assert handle.asked == [("n", RouterStatus(INCARNATION))]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (replace(INFO, identity=ModelIdentity(weights="ab" * 16)), "weights abababababab instead of unknown"),
        (replace(INFO, identity=ModelIdentity(tokenizer="cd" * 16)), "tokenizer cdcdcdcdcdcd instead of unknown"),
        (replace(INFO, spec=replace(INFO.spec, eos_ids=(7,))), "another architecture"),
        (replace(INFO, max_model_len=128), f"max_model_len 128 instead of {INFO.max_model_len}"),
    ],
)
async def test_a_pipeline_of_another_target_is_refused_until_the_router_s_own_comes_back(
    found: TargetInfo, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(target_client, "MISCONFIGURED_S", 0.0)
    connected: list[Endpoints] = []
    seen: list[tuple[bool, str]] = []

    async def connect(endpoints: Endpoints) -> object:
        seen.append((target.is_another, target.trouble))
        connected.append(endpoints)
        return endpoints

    monkeypatch.setattr(target_client, "Pipeline", SimpleNamespace(connect=connect))
    handle = Handle(at("other", found), at("other", found), at("ours"))
    target = target_of(handle)
    with pytest.raises(ConfigError, match=said):
        await target_of(Handle(at("other", found))).connect(INFO)
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(240):
            await target.client(INFO).connect()
    assert [one.first for one in connected] == ["ours"]
    expected = f"its target is not the one that this router serves: {said}"
    assert seen == [(False, expected)]  # no longer another one, and the trouble is over once it is connected
    assert target.trouble == ""
    assert [record.getMessage() for record in caplog.records] == [f"Target cannot be used: {expected}"]
