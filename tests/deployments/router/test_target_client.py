"""What a router makes of what a target says of itself."""

from __future__ import annotations

import asyncio
import logging
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from deployments.pipeline.endpoints import Endpoints
from deployments.pipeline.leadership import INCARNATION
from deployments.pipeline.replacement_seconds import ReplacementSeconds
from engine.errors import ConfigError, TargetLostError
from engine.model.identity import ModelIdentity
from engine.target.info import TargetInfo
from tests.support.virtual_pipeline import INFO

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing Serve warns
    from deployments.router import target_client
    from deployments.router.target_client import ServeTarget, first_endpoints

WRONG = "transport (--transport) is unix, but the router is on another node"


class Handle:
    """A deployment handle whose target answers what the test says, and remembers what it was asked."""

    def __init__(self, *answers: Exception | object) -> None:
        self.deployment_name = "Target"
        self.asked: list[tuple[object, ...]] = []
        self.endpoints = SimpleNamespace(remote=self._remote)
        self._answers = list(answers)

    async def _remote(self, *arguments: object) -> object:
        self.asked.append(arguments)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


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
    assert handle.asked == [("n", INCARNATION, True, led) for led in has_led]


async def test_a_router_that_starts_does_not_say_that_it_is_ready() -> None:
    handle = Handle(at("first"))
    await first_endpoints([target_of(handle)])
    assert handle.asked == [("n", INCARNATION, False, False)]


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
