"""Retrieval's way into router, metrics and configuration; without a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import ValidationError

from app.composition.retrieval import retrieval_options
from app.composition.speculation import speculator_options
from app.config.serve import ServeConfig
from deployments.retrieval.metrics import RetrievalMetrics
from deployments.router.draft_client import InlineDraftClient
from engine.errors import ConfigError
from engine.request import Request
from engine.scheduling.sequence import Sequence
from engine.target.info import TargetInfo
from retrieval_store.service import service
from retrieval_store.service.learner import LiveOptions
from retrieval_store.service.sender import Sender
from speculators.pool import SpeculatorPool
from tests.deployments.conftest import Serving
from tests.support.retrieval_service import SHARED, eventually, publish, running

ONE = [5, 6, 7, 8, 9]


class Noting(InlineDraftClient):
    """Remembers whose requests began."""

    def __init__(self, info: TargetInfo) -> None:
        super().__init__(SpeculatorPool(), info.spec.vocab_size)
        self.namespaces: list[str] = []

    def begin(self, sequence: Sequence) -> None:
        self.namespaces.append(sequence.request.namespace)
        super().begin(sequence)


async def test_naming_the_shared_namespace_is_naming_none_and_outputs_are_learnt_under_their_name(
    serving: Serving, info: TargetInfo, make_job: Callable[..., Request]
) -> None:
    learnt: list[tuple[str, list[int]]] = []
    draft_client = Noting(info)
    async with serving(
        draft_client=draft_client, learn=lambda namespace, tokens: learnt.append((namespace, tokens))
    ) as served:
        job = make_job(1, "pld", stop_ids=())
        answers = []
        for namespace in ("", SHARED, "a"):
            request = Request(job.prompt, job.params, "pld", namespace=namespace)
            answers.append([token async for event in served.router.stream(request) for token in event.token_ids])
        gone = served.router.stream(Request(job.prompt, job.params, "pld", namespace="b"))
        await anext(gone)
        await gone.aclose()
    assert draft_client.namespaces == ["", "", "a", "b"]
    assert learnt == [(SHARED, answers[0]), (SHARED, answers[0]), ("a", answers[0])]  # what broke off is not learnt
    assert len(answers[0]) == 40


def _scrape(metrics: RetrievalMetrics) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(metrics)
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_metrics_name_the_shared_namespace_and_those_that_learn_and_sum_up_the_others(tmp_path: Path) -> None:
    with running(str(tmp_path / "store"), tmp_path / "cache", ["learner"], LiveOptions(interval=0.05)) as node:
        sender = Sender(node.source, ["learner"])
        metrics = RetrievalMetrics("m", node.reader, (SHARED, "learner"), sender)
        assert metrics.detail()["retrieval_version"] == ""
        version = publish(node.store(), [ONE], tmp_path)
        for number in range(20):
            node.says([0], f"tenant-{number}")
        publish(node.store("tenant-3"), [ONE], tmp_path)
        eventually(lambda: node.version() == version and node.version("tenant-3"))
        eventually(lambda: not node.source.learn("learner", [ONE]))
        eventually(lambda: node.reader.status.live_texts == 1 and node.reader.status.folds == 1)
        figures = _scrape(metrics)
        tokens = "spectra:retrieval_snapshot_tokens"
        assert {name: value for name, value in figures.items() if name.startswith(tokens)} == {
            f'{tokens}{{model_name="m",namespace="{SHARED}"}}': 5,
            f'{tokens}{{model_name="m",namespace="learner"}}': 5,
            f'{tokens}{{model_name="m",namespace="*"}}': 5,
        }
        assert figures['spectra:live_texts_total{model_name="m"}'] == 1
        assert figures['spectra:retrieval_refused_total{model_name="m"}'] == 0
        assert figures['spectra:retrieval_swaps_total{model_name="m"}'] == 2
        stale = f'spectra:retrieval_staleness_seconds{{model_name="m",namespace="{SHARED}"}}'
        eventually(lambda: _scrape(metrics)[stale] < 1)
        node.source.is_away = True
        eventually(lambda: _scrape(metrics)[stale] > 1)
        detail = metrics.detail()
        assert (detail["retrieval_version"], detail["retrieval_problem"]) == (version, "")


def test_a_service_that_is_silent_for_long_shows_in_the_health_detail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrieval_store.service.reader.BACKOFF_MOST_S", 0.2)
    with running(str(tmp_path / "store"), tmp_path / "cache") as node:
        metrics = RetrievalMetrics("m", node.reader, (SHARED,), None)
        eventually(lambda: metrics.detail()["retrieval_problem"] == "")
        node.source.is_away = True
        eventually(lambda: "silent" in str(metrics.detail()["retrieval_problem"]))
        assert "silent" in str(metrics.detail()["retrieval_problem"])


@pytest.mark.parametrize(
    ("given", "store", "live"),
    [
        ({"retrieval": "none"}, None, ()),
        ({"retrieval": "redis://127.0.0.1:1/0"}, "redis://127.0.0.1:1/0", ()),
        ({"retrieval": "none", "live": "default, tenant-a,default"}, "", ("default", "tenant-a")),
        ({"retrieval": "none", "live": ["a", "b"]}, "", ("a", "b")),
        ({"retrieval": "redis://127.0.0.1:1/0", "live": "a"}, "redis://127.0.0.1:1/0", ("a",)),
    ],
    ids=str,
)
def test_there_is_a_service_where_there_is_a_store_or_a_namespace_learns(
    given: dict[str, Any], store: str | None, live: tuple[str, ...], tiny_checkpoint: Path
) -> None:
    config = ServeConfig.model_validate({"model": str(tiny_checkpoint), **given})
    options = retrieval_options(config)
    assert (None if options is None else (options.store, options.live)) == (None if store is None else (store, live))
    assert (speculator_options(config).retrieval is None) == (store is None)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"live": "a b"}, "live"),
        ({"live": ["a", "x/y"]}, "live"),
        ({"retrieval_namespace": ""}, "retrieval_namespace"),
        ({"retrieval_namespace": "a b"}, "retrieval_namespace"),
        ({"retrieval_poll": 0}, "retrieval_poll"),
        ({"live_tokens": 0}, "live_tokens"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_an_error_that_names_it(given: dict[str, Any], names: str) -> None:
    with pytest.raises(ValidationError, match=names):
        ServeConfig.model_validate(given)


def test_a_store_that_is_none_is_refused_before_anything_starts_and_without_its_password(tiny_checkpoint: Path) -> None:
    config = ServeConfig(model=str(tiny_checkpoint), retrieval="ftp://user:secret@host/x")
    with pytest.raises(ConfigError, match="--retrieval") as error:
        retrieval_options(config)
    assert "secret" not in str(error.value)


def test_what_a_password_is_does_not_show_in_the_options(tiny_checkpoint: Path) -> None:
    config = ServeConfig(model=str(tiny_checkpoint), retrieval="redis://user:secret@host:1/0")
    assert "secret" not in repr(retrieval_options(config))
    assert "secret" not in repr(config)


def test_more_namespaces_than_are_watched_get_everybodys_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST", 1)
    with running(str(tmp_path / "store"), tmp_path / "cache") as node:
        publish(node.store(), [ONE], tmp_path)
        publish(node.store("a"), [[5, 6, 60]], tmp_path)
        publish(node.store("b"), [[5, 6, 70]], tmp_path)
        eventually(lambda: node.says([5, 6], "a") == [60])
        eventually(lambda: node.says([5, 6], "b") == [7, 8, 9])
        assert "b" not in node.service.status().namespaces
