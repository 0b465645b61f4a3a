"""Retrieval in the router, the metrics and the configuration."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from app.composition.retrieval import retrieval_options
from app.config.serve import ServeConfig
from deployments.credentials import check_credentials, credentials_set
from deployments.retrieval.metrics import RetrievalMetrics
from deployments.router.drafting import InlineDraftClient
from engine.errors import ConfigError
from engine.request import Request
from engine.scheduling.sequence import Sequence
from engine.target_model.info import TargetInfo
from retrieval_store.service.learner import LiveOptions
from retrieval_store.service.sender import OutputSender
from speculators.pool import SpeculatorPool
from tests.deployments.conftest import Serving
from tests.support.retrieval_service import SHARED, publish, running
from tests.support.waiting import wait_until

ONE = [5, 6, 7, 8, 9]
PASSWORD = "SPECTRA_REDIS_PASSWORD"


class Noting(InlineDraftClient):
    """Records the namespaces of the requests that began."""

    def __init__(self, info: TargetInfo) -> None:
        super().__init__(SpeculatorPool(), info.spec.vocab_size)
        self.namespaces: list[str] = []

    def begin(self, sequence: Sequence) -> None:
        self.namespaces.append(sequence.request.namespace)
        super().begin(sequence)


async def test_the_shared_namespace_by_name_is_no_namespace_and_whole_outputs_are_learnt(
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
    assert learnt == [(SHARED, answers[0]), (SHARED, answers[0]), ("a", answers[0])]  # a cancelled one is not learnt
    assert len(answers[0]) == 40


def _scrape(metrics: RetrievalMetrics) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(metrics)
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_metrics_name_the_shared_and_the_learning_namespaces_and_sum_up_the_others(tmp_path: Path) -> None:
    with running(str(tmp_path / "store"), tmp_path / "cache", ["learner"], LiveOptions(interval=0.05)) as node:
        sender = OutputSender(node.source, ["learner"])
        metrics = RetrievalMetrics("m", node.reader, (SHARED, "learner"), sender)
        assert metrics.detail()["retrieval_version"] == ""
        version = node.publish([ONE], tmp_path)
        for number in range(20):
            node.drafts([0], f"tenant-{number}")
        publish(node.store("tenant-3"), [ONE], tmp_path)
        wait_until(lambda: node.version("tenant-3"))
        wait_until(lambda: not node.source.learn("learner", [ONE]))
        wait_until(lambda: node.reader.status.live_texts == 1 and node.reader.status.folds == 1)
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
        node.source.is_away = True
        before = _scrape(metrics)[stale]
        wait_until(lambda: _scrape(metrics)[stale] > before + 1)
        detail = metrics.detail()
        assert (detail["retrieval_version"], detail["retrieval_problem"]) == (version, "")


def test_no_message_or_option_shows_the_password_of_the_store(tiny_checkpoint: Path) -> None:
    config = ServeConfig(model=str(tiny_checkpoint), retrieval="ftp://user:secret@host/x")
    with pytest.raises(ConfigError, match="--retrieval") as error:
        retrieval_options(config)
    assert "secret" not in str(error.value)
    config = ServeConfig(model=str(tiny_checkpoint), retrieval="redis://user:secret@host:1/0")
    assert "secret" not in repr(retrieval_options(config))
    assert "secret" not in repr(config)


def test_a_node_without_the_password_is_refused_by_name() -> None:
    built = credentials_set({PASSWORD: "secret", "SPECTRA_REDIS_USERNAME": "", "OTHER": "x"})
    assert built == (PASSWORD,)
    check_credentials(built, "10.0.0.7", {PASSWORD: "another"})
    with pytest.raises(ConfigError, match=r"node 10\.0\.0\.7 has no SPECTRA_REDIS_PASSWORD in its environment"):
        check_credentials(built, "10.0.0.7", {PASSWORD: ""})
    check_credentials((), "10.0.0.7", {})


def test_options_hold_names_of_credentials_and_no_values(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, "4711-secret")
    model = str(tiny_checkpoint)
    stored = retrieval_options(ServeConfig(model=model, retrieval="redis://127.0.0.1:1"))
    assert stored is not None
    assert stored.credentials == (PASSWORD,)
    assert b"4711-secret" not in pickle.dumps(stored)
    in_memory = retrieval_options(ServeConfig(model=model, live="default"))
    assert in_memory is not None
    assert in_memory.credentials == ()
