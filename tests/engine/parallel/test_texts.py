"""The text of a target whose stages have several tensor-parallel ranks, which run in threads here."""

from __future__ import annotations

import pytest

from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from tests.support.engines import complete_all, make_engine
from tests.support.methods import AVAILABLE, TRAINED
from tests.support.rank_threads import threaded_target
from tests.support.tiny_models import FAMILIES, random_prompts, reference_tokens

EOS = 2
N_TOKENS = 20
METHODS = (
    *(method for method in AVAILABLE if method not in (*TRAINED, "grammar")),
    "suffix+token-recycling",
    "always-wrong",
    "always-right",
)
SHAPES = [(2, 1), (4, 2), (4, 1), (2, 2)]  # ranks, stages
# Every method on one shape and family, in turn; `make test-all` adds a second one.
CELLS = [
    pytest.param(
        method,
        FAMILIES[(i + turn) % len(FAMILIES)],
        SHAPES[(i + 2 * turn) % len(SHAPES)],
        marks=[pytest.mark.matrix] * (turn > 0),
    )
    for i, method in enumerate(METHODS)
    for turn in range(2)
]


@pytest.mark.parametrize(("method", "family", "shape"), CELLS)
def test_greedy_text_equals_generate(method: str, family: str, shape: tuple[int, int]) -> None:
    texts = random_prompts(3)
    expected = [reference_tokens(family, tuple(text), N_TOKENS) for text in texts]
    answers = {tuple(text): answer for text, answer in zip(texts, expected, strict=True)}
    engine = make_engine(threaded_target(family, *shape), answers, SchedulerOptions(prefill_chunk=40))
    jobs = [Request(text, SamplingParams(max_tokens=N_TOKENS, stop_ids=(EOS,)), method) for text in texts]
    done = complete_all(engine, jobs, 3)
    assert [completion.token_ids for completion in done] == expected
