"""Claims that are no numbers: nothing is spent on them, and they teach nothing to other requests of their scope."""

import math

import pytest

from engine.protocol import Branch
from speculators.auto.calibration import DEPTHS, DepthCalibration
from speculators.auto.ranking import rank
from speculators.auto.speculator import Auto
from tests.support.auto_sources import Decoding, Source, line


@pytest.mark.parametrize("claim", [math.nan, math.inf])
def test_a_scope_survives_a_request_with_such_claims(claim):
    source = Source(claim=claim)
    auto = Auto([source], line(0.1))
    first = Decoding(auto)
    assert not any(first.steps(30))
    first.end()
    source.claim = 0.9
    assert sum(Decoding(auto, first=1).steps(30)) > 60, "a source that is right about all eight tokens of a draft"


@pytest.mark.parametrize("parents", [None, [-1, 0, 1]])
def test_what_lies_behind_such_a_claim_counts_nothing(parents):
    branch = Branch([1, 2, 3], "source", parents, scores=[0.9, math.nan, 0.9])
    ranked = rank("auto", [branch], [1.0] * DEPTHS, 8)
    assert ranked.reach == [0.9, 0.0, 0.0]


def test_a_calibration_passes_over_the_depth_of_such_a_claim_and_learns_from_the_others():
    calibration = DepthCalibration()
    calibration.add([1.0, math.nan, *[1.0] * (DEPTHS - 2)], [1.0] * DEPTHS)
    assert calibration.claimed == calibration.hits == [1.0, 0.0, *[1.0] * (DEPTHS - 2)]
