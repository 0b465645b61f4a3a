"""What a simulated target writes: recorded answers, and made-up ones that depend on nothing but the request."""

from __future__ import annotations

import pytest

from engine.errors import ConfigError
from engine.sampling.params import SamplingParams
from engine.simulated.answers import Answers, pack_recordings

GREEDY = SamplingParams()
PROMPT = [5, 6, 7, 5, 6]


def _written(prompt: list[int], params: SamplingParams = GREEDY, n: int = 200, recordings: bytes = b"") -> list[int]:
    return Answers(300, (2,), recordings).to(prompt, params).part(0, n)


def test_a_recorded_prompt_gets_its_answer_and_made_up_text_behind_it() -> None:
    answer = [9, 8, 7, 2]
    recordings = pack_recordings([(PROMPT, answer), ([1], [3])])
    assert _written(PROMPT, n=4, recordings=recordings) == answer
    assert _written(PROMPT, n=60, recordings=recordings) == answer + _written(PROMPT, n=56)


def test_of_two_answers_to_one_prompt_the_first_counts() -> None:
    assert _written(PROMPT, n=1, recordings=pack_recordings([(PROMPT, [9]), (PROMPT, [8])])) == [9]


def test_made_up_text_is_the_same_however_it_is_read() -> None:
    whole = _written(PROMPT)
    answer = Answers(300, (2,)).to(PROMPT, GREEDY)
    assert answer.part(150, 20) == whole[150:170]
    assert answer.part(0, 7) + answer.part(7, 193) == whole


def test_made_up_text_depends_on_prompt_and_when_sampling_on_seed_and_choice() -> None:
    def sampled(seed: int, choice: int = 0) -> list[int]:
        return _written(PROMPT, SamplingParams(temperature=0.8, seed=seed, choice=choice))

    assert _written(PROMPT) != _written([*PROMPT, 1])
    assert _written(PROMPT, SamplingParams(seed=1)) == _written(PROMPT, SamplingParams(seed=2))
    assert sampled(1) == sampled(1)
    assert len({tuple(sampled(1)), tuple(sampled(2)), tuple(sampled(1, choice=1)), tuple(_written(PROMPT))}) == 4


def test_made_up_text_never_ends_by_itself() -> None:
    written = _written([2, 2, 2, 77], SamplingParams(stop_ids=(2, 77)), n=2000)
    assert len(written) == 2000
    assert not {2, 77} & set(written)
    assert max(written) < 300


def test_recordings_of_another_vocabulary_are_refused() -> None:
    with pytest.raises(ConfigError, match="outside the vocabulary of 300"):
        Answers(300, (), pack_recordings([(PROMPT, [300])]))
