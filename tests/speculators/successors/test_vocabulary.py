"""Rows of the target after every token: read by an engine, stored in a file, used where nothing else is known."""

import pickle

import numpy as np
import pytest
import torch

from app.speculation.vocabulary import read_rows
from engine.errors import ConfigError
from engine.request import Request
from engine.sampling.params import SamplingParams
from speculators.method import SpeculatorOptions
from speculators.registry import create
from speculators.successors.config import TARGET, SuccessorConfig
from speculators.successors.models import SuccessorModels
from speculators.successors.vocabulary import BELOW, PAIR_TOP_K, READ_TOP_K, TOP_K, VocabularyRows, pair_row
from tests.speculators.drafts import first_draft as draft_of
from tests.speculators.drafts import tokens_of, view
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.tiny_models import random_prompts, tiny_model

FAMILY = "qwen3"
STARTS = [[5, 6, 7], [8, 9]]
VOCAB = tiny_model(FAMILY).config.vocab_size


@pytest.fixture(scope="module")
def read() -> VocabularyRows:
    return read_rows(make_target(FAMILY, stages=2), STARTS)


def after(texts: list[list[int]]) -> np.ndarray:
    """The model's own probabilities after texts of one length, ``[n, vocab]``."""
    with torch.inference_mode():
        return tiny_model(FAMILY)(torch.tensor(texts)).logits[:, -1].softmax(-1).numpy()


def mean_after(texts: list[list[int]], n_read: int) -> np.ndarray:
    """The mean over all beginnings of the probabilities that are read back, ``[n, vocab]``."""
    mean = np.zeros((len(texts), VOCAB))
    for start in STARTS:
        said = after([[*start, *text] for text in texts])
        said[said < np.sort(said)[:, -n_read, None]] = 0.0
        mean += said / len(STARTS)
    return mean


def test_rows_are_the_models_mean_probabilities_after_each_token(read: VocabularyRows) -> None:
    mean = mean_after([[token] for token in range(VOCAB)], READ_TOP_K)
    assert read.ids.shape == (VOCAB, TOP_K)
    assert np.allclose(read.weights, -np.sort(-mean)[:, :TOP_K], atol=1e-4)
    assert np.allclose(read.weights, mean[np.arange(VOCAB)[:, None], read.ids], atol=1e-4)


def test_pairs_are_of_a_token_and_its_likeliest_successors(read: VocabularyRows) -> None:
    pairs = [(key >> 32, key & 0xFFFFFFFF) for key in read.pair_keys.tolist()]
    assert pairs == sorted(pairs)
    assert set(pairs) == {(token, below) for token in range(VOCAB) for below in read.ids[token, :BELOW].tolist()}
    mean = mean_after([list(pair) for pair in pairs], TOP_K)
    assert np.allclose(read.pair_weights, -np.sort(-mean)[:, :PAIR_TOP_K], atol=1e-4)
    found = [pair_row(read, *pair) for pair in (*pairs[:9], (VOCAB, 0), (0, VOCAB))]
    assert found == [*range(9), -1, -1]


def test_a_file_holds_the_rows_of_one_model(read: VocabularyRows, tmp_path) -> None:
    file, n = tmp_path / "folder" / "rows.safetensors", len(read.ids)
    read.write(file, "abc")
    again = VocabularyRows.read(file, "abc", n)
    for found, written in zip(again, read, strict=True):
        assert np.array_equal(found, written)
        assert found.dtype == written.dtype
    for model, vocab in (("abd", n), ("abc", n + 1)):
        with pytest.raises(ConfigError, match="another model"):
            VocabularyRows.read(file, model, vocab)
    file.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="cannot be read"):
        VocabularyRows.read(file, "abc", n)
    with pytest.raises(ConfigError, match="cannot be written"):
        read.write(file / "below", "abc")


def first_draft(read: VocabularyRows | None, method: str) -> list[int]:
    """The nodes drafted after a prompt of one token of which nothing else is known."""
    speculator = create(method, SpeculatorOptions(vocabulary=read))
    return tokens_of(draft_of(speculator, view([9], vocab_size=97, max_tokens=9), 5))


def test_contexts_never_seen_have_successors_where_the_target_is_a_source(read: VocabularyRows) -> None:
    for method in ("token-recycling", "suffix+token-recycling"):
        assert first_draft(None, method) == []
        draft = first_draft(read, method)
        assert len(draft) == 5
        assert draft[0] == read.ids[9, 0]
    assert first_draft(read, "suffix") == []


def test_read_only_rows_from_another_process_are_as_good(read: VocabularyRows) -> None:
    """Ray's arrays are read-only, to Numba another type."""
    sent = pickle.loads(pickle.dumps(read))
    for array in sent:
        array.flags.writeable = False
    model = SuccessorModels(SuccessorConfig(), (TARGET,), sent).new(10)
    assert all(array.flags.writeable for array in model.vocabulary)
    assert first_draft(sent, "token-recycling") == first_draft(read, "token-recycling")


@pytest.mark.parametrize("params", [{}, {"temperature": 0.8, "seed": 3}])
def test_rows_change_no_text(params: dict[str, float], read: VocabularyRows) -> None:
    jobs = [Request(one, SamplingParams(max_tokens=16, **params), "token-recycling", 8) for one in random_prompts(2)]
    texts = []
    for vocabulary in (None, read):
        options = SpeculatorOptions(vocabulary=vocabulary)
        extra = {"token-recycling": lambda _, options=options: create("token-recycling", options)}
        texts.append([one.token_ids for one in complete_all(make_engine(make_target(FAMILY), extra=extra), jobs)])
    assert texts[0] == texts[1]
