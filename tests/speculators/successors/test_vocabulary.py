"""Rows of the target behind every token: read by an engine, kept in a file, drafted with where nothing is known."""

import pickle

import numpy as np
import pytest
import torch

from app.speculation.vocabulary import read_rows
from engine.errors import ConfigError
from engine.protocol import RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from speculators.registry import SpeculatorOptions, create
from speculators.successors.speculator import SuccessorConfig, Successors
from speculators.successors.vocabulary import VocabularyRows
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.tiny_models import random_prompts, tiny_model

FAMILY = "qwen3"
K = 5


@pytest.fixture(scope="module")
def read() -> VocabularyRows:
    return read_rows(make_target(FAMILY, stages=2), [5, 6, 7], K)


def test_rows_are_what_the_model_says_behind_each_token(read: VocabularyRows) -> None:
    model = tiny_model(FAMILY)
    n = model.config.vocab_size
    texts = torch.tensor([[5, 6, 7, token] for token in range(n)])
    with torch.inference_mode():
        wanted = model(texts).logits[:, -1].log_softmax(-1).exp().topk(K)
    assert read.ids.shape == (n, K)
    assert np.allclose(read.weights, wanted.values.numpy(), atol=1e-4)
    assert (read.ids == wanted.indices.numpy()).mean() > 0.99  # all but ties


def test_one_token_is_beginning_enough() -> None:
    assert len(read_rows(make_target(FAMILY), [5], K)) == len(read_rows(make_target(FAMILY), [5, 6], K))


def test_a_file_holds_the_rows_of_one_model(read: VocabularyRows, tmp_path) -> None:
    file, n = tmp_path / "folder" / "rows.safetensors", len(read)
    read.write(file, "abc")
    again = VocabularyRows.read(file, "abc", n)
    assert np.array_equal(again.ids, read.ids)
    assert np.array_equal(again.weights, read.weights)
    for model, vocab in (("abd", n), ("abc", n + 1)):
        with pytest.raises(ConfigError, match="another model"):
            VocabularyRows.read(file, model, vocab)
    file.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="cannot be read"):
        VocabularyRows.read(file, "abc", n)
    with pytest.raises(ConfigError, match="cannot be written"):
        read.write(file / "below", "abc")


def first_draft(read: VocabularyRows | None, method: str) -> list[int]:
    """The nodes drafted behind a prompt of one token that no text and no target has said anything about."""
    speculator = create(method, SpeculatorOptions(vocabulary=read))
    view = RequestView.of(0, Request([9], SamplingParams(max_tokens=9)), 97)
    speculator.begin(view)
    branches = speculator.propose(view, K)
    return [token for branch in branches for token in branch.tokens]


@pytest.mark.parametrize("method", ["token-recycling", "suffix+token-recycling"])
def test_contexts_never_seen_have_successors(read: VocabularyRows, method: str) -> None:
    assert first_draft(None, method) == []
    draft = first_draft(read, method)
    assert len(draft) == K
    assert draft[0] == read.ids[9, 0]


def test_what_reads_text_alone_is_not_told(read: VocabularyRows) -> None:
    assert first_draft(read, "suffix") == []


def test_rows_from_another_process_are_drafted_with_as_they_are(read: VocabularyRows) -> None:
    """Ray's arrays are read-only, to Numba another type."""
    sent = pickle.loads(pickle.dumps(read))
    sent.ids.flags.writeable = sent.weights.flags.writeable = False
    model = Successors(SuccessorConfig(), vocabulary=sent)._new_model(10)
    assert model.vocabulary_ids.flags.writeable
    assert model.vocabulary_weights.flags.writeable
    assert first_draft(sent, "token-recycling") == first_draft(read, "token-recycling")


@pytest.mark.parametrize("params", [{}, {"temperature": 0.8, "seed": 3}])
def test_texts_are_the_same_in_fewer_steps(params: dict[str, float]) -> None:
    """Rows behind the real beginning of every answer's text; a random model's order-1 rows are as good as any."""
    target = make_target(FAMILY)
    read = read_rows(target, random_prompts(1)[0])
    jobs = [
        Request(prompt, SamplingParams(max_tokens=20, **params), "token-recycling", 8) for prompt in random_prompts(4)
    ]
    options = [SpeculatorOptions(), SpeculatorOptions(vocabulary=read)]
    done = [
        complete_all(
            make_engine(make_target(FAMILY), extra={"token-recycling": lambda _, o=o: create("token-recycling", o)}),
            jobs,
        )
        for o in options
    ]
    assert [one.token_ids for one in done[0]] == [one.token_ids for one in done[1]]
