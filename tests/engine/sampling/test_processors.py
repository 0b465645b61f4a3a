"""Logit processing against Hugging Face's processors, and batched paths against row-wise ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.sampling import truncation
from engine.sampling.history import History
from engine.sampling.logprobs import as_logprobs, fetch_logprobs
from engine.sampling.params import SamplingParams
from engine.sampling.processors import Processing, process
from engine.upload import Upload

VOCAB = 300
PROMPT = [3, 5, 7, 3, 9, 11]
OUTPUT = [5, 20, 20, 21, 20]
NEG_INF = float("-inf")


def hugging_face(params: SamplingParams) -> LogitsProcessorList:
    """The processors ``generate`` would build, in its order."""
    chain: list[LogitsProcessor] = []
    if params.logit_bias:
        chain.append(SequenceBiasLogitsProcessor({(token,): bias for token, bias in params.logit_bias.items()}))
    if params.repetition_penalty != 1.0:
        chain.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.min_tokens:
        stops = list(params.stop_ids)
        chain.append(MinNewTokensLengthLogitsProcessor(len(PROMPT), params.min_tokens, stops, device="cpu"))
    if params.temperature not in (0.0, 1.0):
        chain.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        chain.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        chain.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        chain.append(MinPLogitsWarper(params.min_p))
    return LogitsProcessorList(chain)


def random_params(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice([0.3, 0.7, 1.0, 1.9]),
        top_k=rng.choice([0, 0, 1, 5, 50, VOCAB, 4 * VOCAB]),
        top_p=rng.choice([1.0, 0.0, 0.1, 0.5, 0.9, 0.999]),
        min_p=rng.choice([0.0, 0.0, 0.02, 0.3, 1.0]),
        repetition_penalty=rng.choice([1.0, 0.8, 1.3]),
        logit_bias=rng.choice([{}, {4: 3.0, 20: -100.0}]),
        min_tokens=rng.choice([0, len(OUTPUT), len(OUTPUT) + 1]),
        stop_ids=(2, 11),
    )


def random_logits(n: int, seed: int) -> torch.Tensor:
    return torch.randn(n, VOCAB, generator=torch.Generator().manual_seed(seed)) * 4.0


def test_scores_equal_hugging_face_bit_for_bit() -> None:
    rng = random.Random(0)
    ids = torch.tensor([PROMPT + OUTPUT])
    for seed in range(150):
        params = random_params(rng)
        logits = random_logits(1, seed)
        expected = hugging_face(params)(ids, logits.clone())
        assert torch.equal(process(logits, [params], [History(PROMPT, OUTPUT)]), expected), params


@pytest.mark.parametrize("rounded", [False, True], ids=["fp32", "bf16 with ties"])
def test_device_truncation_equals_the_row_wise_one(rounded: bool) -> None:
    rng = random.Random(2)
    for seed in range(30):
        params = [random_params(rng) for _ in range(8)]
        scores = random_logits(8, seed)
        scores = scores.bfloat16().float() if rounded else scores
        upload = Upload(scores.device)
        batched = truncation.DeviceTruncation(params, VOCAB, upload)
        upload.send()
        assert torch.equal(batched.apply(scores), truncation.truncate(scores, params))


def test_top_p_drops_the_highest_of_equal_ids_and_keeps_as_many_as_hugging_face() -> None:
    scores = torch.zeros(1, 8)
    kept = process(scores, [SamplingParams(temperature=1.0, top_p=0.5)], [None])[0] > NEG_INF
    assert kept.tolist() == [True] * 4 + [False] * 4
    assert kept.sum() == (TopPLogitsWarper(0.5)(None, scores) > NEG_INF).sum()


def test_the_best_id_survives_every_truncation() -> None:
    extremes = itertools.product([0, 1], [1.0, 0.0], [0.0, 1.0])
    for top_k, top_p, min_p in extremes:
        params = SamplingParams(temperature=1e-4, top_k=top_k, top_p=top_p, min_p=min_p)
        scores = process(random_logits(4, 6), [params] * 4, [None] * 4)
        assert torch.equal(scores.argmax(-1), random_logits(4, 6).argmax(-1))
        assert (scores > NEG_INF).any(dim=-1).all()


def test_logprobs_come_from_the_raw_distribution() -> None:
    logits = random_logits(3, 7).bfloat16()
    table = torch.log_softmax(logits.float(), dim=-1)
    entries = as_logprobs([4, 5, 6], [0, 2, 3], *fetch_logprobs(logits, [4, 5, 6], 3))
    for row, (entry, k) in enumerate(zip(entries, [0, 2, 3], strict=True)):
        best = table[row].topk(k)
        assert entry.token_id == row + 4
        assert entry.logprob == table[row, row + 4].item()
        assert [token for token, _ in entry.top] == best.indices.tolist()
        assert [value for _, value in entry.top] == best.values.tolist()


N_IDS = 40


@dataclass
class ProcessedSequence:
    """One sequence, and the paths of its rows."""

    params: SamplingParams
    prompt: list[int]
    output: list[int]
    paths: list[list[int]]


@st.composite
def texts(draw: st.DrawFn) -> ProcessedSequence:
    rng = random.Random(draw(st.integers(0, 2**32)))

    def tokens(most: int) -> list[int]:
        return [rng.randrange(N_IDS) for _ in range(rng.randrange(most))]

    params = SamplingParams(
        repetition_penalty=rng.choice([1.0, 0.7, 1.37]),
        presence_penalty=rng.choice([0.0, 0.3, -1.1]),
        frequency_penalty=rng.choice([0.0, 0.7, -0.2]),
        logit_bias=rng.choice([{}, {token: rng.uniform(-9, 9) for token in tokens(30)}]),
        min_tokens=rng.choice([0, 3, 9]),
        stop_ids=tuple(rng.choice([(), (2, 7, N_IDS + 5)])),
        allowed_ids=rng.choice([(), tuple({1, *tokens(30)})]),
        bad_words=rng.choice([(), ((3,), (N_IDS + 5,), *((i, (i + 1) % N_IDS) for i in tokens(30)), (4, 5, 6))]),
    )
    return ProcessedSequence(
        params, tokens(30) if rng.random() < 0.9 else [], tokens(20), [tokens(9) for _ in range(rng.randrange(7))]
    )


def shifted_row(
    logits: torch.Tensor, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> torch.Tensor:
    """Oracle: the row ``[vocab]`` before temperature, after ``prompt`` and ``output``, one token at a time."""
    row = logits.clone()
    for token, bias in params.logit_bias.items():
        row[token] += torch.tensor(bias, dtype=torch.float32)
    if params.repetition_penalty != 1.0:
        for token in {*prompt, *output}:
            penalty = params.repetition_penalty
            row[token] = row[token] * penalty if row[token] < 0 else row[token] / penalty
    if params.presence_penalty or params.frequency_penalty:
        for token in set(output):
            count = torch.tensor(float(output.count(token)))
            row[token] -= params.presence_penalty + params.frequency_penalty * count
    if len(output) < params.min_tokens:
        for token in params.stop_ids:
            if token < len(row):
                row[token] = float("-inf")
    for word in params.bad_words:
        text = [*output, word[-1]]
        if tuple(text[-len(word) :]) == word and word[-1] < len(row):
            row[word[-1]] = float("-inf")
    if params.allowed_ids:
        for token in set(range(len(row))) - {*params.allowed_ids}:
            row[token] = float("-inf")
    return row


@given(st.lists(texts(), max_size=4), st.integers(0, 2**32))
def test_rows_of_many_sequences_and_paths_equal_rows_alone(batch: list[ProcessedSequence], seed: int) -> None:
    rows = [(text, path) for text in batch for path in text.paths]
    random.Random(seed).shuffle(rows)
    logits = torch.randn(len(rows), N_IDS, generator=torch.Generator().manual_seed(seed % 2**31)) * 4.0
    histories = {id(text): History(text.prompt, text.output) for text in batch}
    upload = Upload(logits.device)
    plan = Processing(
        [text.params for text, _ in rows],
        [histories[id(text)] for text, _ in rows],
        N_IDS,
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
