"""Bias, penalties and masks of whole trees at once equal those of one row after the other, bit for bit."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling.history import History
from engine.sampling.params import SamplingParams
from engine.sampling.processors import Processing
from engine.upload import Upload
from tests.support.slow_processing import shifted_row

VOCAB = 40


@dataclass
class Text:
    """One sequence, and the paths of its rows."""

    params: SamplingParams
    prompt: list[int]
    output: list[int]
    paths: list[list[int]]


@st.composite
def texts(draw: st.DrawFn) -> Text:
    rng = random.Random(draw(st.integers(0, 2**32)))

    def tokens(most: int) -> list[int]:
        return [rng.randrange(VOCAB) for _ in range(rng.randrange(most))]

    params = SamplingParams(
        repetition_penalty=rng.choice([1.0, 0.7, 1.37]),
        presence_penalty=rng.choice([0.0, 0.3, -1.1]),
        frequency_penalty=rng.choice([0.0, 0.7, -0.2]),
        logit_bias=rng.choice([{}, {token: rng.uniform(-9, 9) for token in tokens(30)}]),
        min_tokens=rng.choice([0, 3, 9]),
        stop_ids=tuple(rng.choice([(), (2, 7, VOCAB + 5)])),
        allowed_ids=rng.choice([(), tuple({1, *tokens(30)})]),
        bad_words=rng.choice([(), ((3,), (VOCAB + 5,), *((i, (i + 1) % VOCAB) for i in tokens(30)), (4, 5, 6))]),
    )
    return Text(
        params, tokens(30) if rng.random() < 0.9 else [], tokens(20), [tokens(9) for _ in range(rng.randrange(7))]
    )


@given(st.lists(texts(), max_size=4), st.integers(0, 2**32))
def test_rows_of_many_sequences_and_paths_equal_rows_alone(batch: list[Text], seed: int) -> None:
    rows = [(text, path) for text in batch for path in text.paths]
    random.Random(seed).shuffle(rows)
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed % 2**31)) * 4.0
    histories = {id(text): History(text.prompt, text.output) for text in batch}
    upload = Upload(logits.device)
    plan = Processing(
        [text.params for text, _ in rows],
        [histories[id(text)] for text, _ in rows],
        VOCAB,
        upload,
        [path for _, path in rows],
    )
    upload.send()
    before = logits.clone()
    scores = plan.apply(logits)
    assert torch.equal(logits, before), "the caller's logits changed"
    for row, (text, path), score in zip(logits, rows, scores, strict=True):
        assert torch.equal(score, shifted_row(row, text.params, text.prompt, [*text.output, *path]))
    assert torch.equal(plan.apply(logits, owned=True), scores)


def test_a_grown_history_equals_one_built_at_once() -> None:
    rng = random.Random(0)
    prompt, output = ([rng.randrange(300) for _ in range(n)] for n in (200, 500))
    grown = History(prompt)
    for token in output:
        grown.add(token)
    made = History(prompt, output)
    assert grown.n_output == made.n_output == len(output)
    assert grown.seen.tolist() == made.seen.tolist() == list(dict.fromkeys(prompt + output))
    assert grown.drawn.tolist() == list(dict.fromkeys(output))
    assert grown.times.tolist() == [output.count(token) for token in dict.fromkeys(output)]
    path = [output[0], 299, 299, 1000]
    assert grown.unseen(path) == [token for token in (299, 1000) if token not in {*prompt, *output}]
    tokens, times = grown.times_with(path)
    assert dict(zip(tokens, times.tolist(), strict=True)) == {t: (output + path).count(t) for t in path}
