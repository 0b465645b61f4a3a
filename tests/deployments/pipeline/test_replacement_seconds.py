"""A router counts what it is told of replaced stages, once, however often it asks for the endpoints."""

from __future__ import annotations

from deployments.pipeline.endpoints import Endpoints
from deployments.pipeline.replacement import CONNECT, LOAD, Replacement
from deployments.pipeline.replacement_seconds import ReplacementSeconds
from tests.support.virtual_pipeline import INFO


def told(n: int, secret: bytes = b"one") -> Endpoints:
    """Endpoints after ``n`` replacements, of which a pipeline's owner remembers two; the first was planned."""
    all_of_them = [
        Replacement(i, {1: "died"}, 2.0 * i, {LOAD: 1.0, CONNECT: 0.5}, planned=i == 1) for i in range(1, n + 1)
    ]
    return Endpoints("first", "last", secret, INFO, replacements=tuple(all_of_them[-2:]))


def counted(seconds: ReplacementSeconds) -> dict[tuple[str, ...], float]:
    """(lane, phase, planned) -> sum of seconds."""
    (family,) = seconds.collect()
    return {
        (sample.labels["lane"], sample.labels["phase"], sample.labels["planned"]): sample.value
        for sample in family.samples
        if sample.name == "spectra:stage_replacement_seconds_sum"
    }


def test_every_replacement_is_counted_once_by_phase() -> None:
    seconds = ReplacementSeconds("demo")
    for n in (0, 1, 1, 3, 3):
        seconds.count("Target", told(n))
    assert counted(seconds) == {
        ("Target", "load", "true"): 1.0,
        ("Target", "connect", "true"): 0.5,
        ("Target", "total", "true"): 2.0,
        ("Target", "load", "false"): 2.0,
        ("Target", "connect", "false"): 1.0,
        ("Target", "total", "false"): 10.0,
    }


def test_a_router_that_starts_leaves_out_what_another_one_has_counted() -> None:
    seconds = ReplacementSeconds("demo")
    seconds.count("Target", told(2))
    assert counted(seconds) == {}
    seconds.count("Target", told(3))
    assert counted(seconds)["Target", "total", "false"] == 6.0


def test_another_pipeline_of_the_lane_begins_anew() -> None:
    seconds = ReplacementSeconds("demo")
    seconds.count("Target", told(3))
    seconds.count("Target", told(1, b"two"))
    assert counted(seconds)["Target", "total", "true"] == 2.0
