"""The text of a target whose stages have several tensor-parallel ranks, which run in threads here."""

from __future__ import annotations

from functools import cache

import pytest

from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.local import LocalTarget
from tests.support.engines import complete_all, make_engine
from tests.support.methods import AVAILABLE, TRAINED
from tests.support.rank_threads import threaded_target
from tests.support.tiny_models import FAMILIES, random_prompts, reference_tokens

EOS = 2
N_TOKENS = 20
N_PROMPTS = 32
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


@cache
def seeded_texts(family: str, method: str) -> list[list[int]]:
    """Sampled texts of one rank and one stage."""
    return complete(threaded_target(family, 1), family, method, temperature=0.9, top_p=0.95)


def complete(target: LocalTarget, family: str, method: str, **sampling: float) -> list[list[int]]:
    """Texts of ``N_PROMPTS`` prompts, each with a seed of its own."""
    texts = random_prompts(N_PROMPTS)
    answers = {tuple(text): reference_tokens(family, tuple(text), N_TOKENS) for text in texts}
    engine = make_engine(target, answers, SchedulerOptions(prefill_chunk=40))
    params = [SamplingParams(max_tokens=N_TOKENS, stop_ids=(EOS,), seed=n, **sampling) for n in range(N_PROMPTS)]  # type: ignore[arg-type]
    jobs = [Request(text, own, method) for text, own in zip(texts, params, strict=True)]
    return [completion.token_ids for completion in complete_all(engine, jobs, 8)]


@pytest.mark.matrix
@pytest.mark.parametrize("method", ["autoregressive", "suffix+token-recycling"])
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_thirty_two_prompts_for_every_shape(family: str, ranks: int, stages: int, method: str) -> None:
    """Greedy texts are those of ``generate``, sampled ones those of one rank and one stage, without drafts and with."""
    target = threaded_target(family, ranks, stages)
    expected = [reference_tokens(family, tuple(text), N_TOKENS) for text in random_prompts(N_PROMPTS)]
    assert complete(target, family, method) == expected
    assert complete(target, family, method, temperature=0.9, top_p=0.95) == seeded_texts(family, "autoregressive")
