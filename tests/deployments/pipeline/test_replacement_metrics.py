"""A router counts each replacement of a stage once, however often it asks for the endpoints."""

from __future__ import annotations

from deployments.pipeline.endpoints import Endpoints
from deployments.pipeline.replacement_metrics import ReplacementMetrics
from deployments.pipeline.stage_reports import CONNECT, LOAD, LoadReport, StageReplacement
from tests.support.virtual_pipeline import INFO

NAME = "spectra:stage_replacement_seconds_sum"


def endpoints(n: int, secret: bytes = b"one") -> Endpoints:
    """Endpoints after ``n`` replacements, of which the last two are listed; the first was planned."""
    made = [
        StageReplacement(i, {1: "died"}, 2.0 * i, {LOAD: 1.0, CONNECT: 0.5}, planned=i == 1) for i in range(1, n + 1)
    ]
    return Endpoints("first", "last", secret, INFO, LoadReport(n_ranks=2), tuple(made[-2:]))


def counted(*seen: Endpoints) -> dict[tuple[str, str], float]:
    """(phase, planned) -> sum of seconds, after a router has seen these endpoints."""
    metrics = ReplacementMetrics("tiny")
    for one in seen:
        metrics.count("Target", one)
    samples = [sample for family in metrics.collect() for sample in family.samples if sample.name == NAME]
    assert all(sample.labels["lane"] == "Target" for sample in samples)
    return {(sample.labels["phase"], sample.labels["planned"]): sample.value for sample in samples}


def test_every_replacement_is_counted_once_by_the_router_that_serves() -> None:
    planned = {("load", "true"): 1.0, ("connect", "true"): 0.5, ("total", "true"): 2.0}
    lost = {("load", "false"): 2.0, ("connect", "false"): 1.0, ("total", "false"): 10.0}
    assert counted(*(endpoints(n) for n in (0, 1, 1, 3, 3))) == planned | lost
    assert counted(endpoints(2)) == {}  # another router has counted these
    assert counted(endpoints(2), endpoints(3))["total", "false"] == 6.0
    assert counted(endpoints(3), endpoints(1, b"two"))["total", "true"] == 2.0  # of the lane's next pipeline


def test_a_replaced_process_is_counted_by_stage_and_rank() -> None:
    metrics = ReplacementMetrics("tiny")
    reasons = {0: "its node drains", 1: "its node drains"}
    moved = [StageReplacement(1, reasons, 2.0, planned=True), StageReplacement(2, {3: "died"}, 2.0)]
    for known in ([], moved, moved):
        metrics.count("Target", Endpoints("first", "last", b"one", INFO, LoadReport(n_ranks=2), tuple(known)))
    samples = [sample for family in metrics.collect() for sample in family.samples]
    found = [one for one in samples if one.name == "spectra:stage_replacements_total"]
    counts = {(one.labels["stage"], one.labels["rank"], one.labels["planned"]): one.value for one in found}
    assert counts == {("0", "0", "true"): 1, ("0", "1", "true"): 1, ("1", "1", "false"): 1}
