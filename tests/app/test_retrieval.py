"""``--retrieval``: text becomes an index where drafting happens, and what is wrong with it is said before that."""

from __future__ import annotations

import argparse
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from app.config import ServeConfig
from app.demo.paths import DEMO_TARGET
from app.retrieval import as_text, conversation, corpus_index
from app.serve_command import config_from
from app.tokenizers import load_tokenizer
from engine.errors import ConfigError
from retrieval_store.corpus import Document, Message
from retrieval_store.index import Limits
from retrieval_store.memory import MemoryIndex
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions
from speculators.rest import RestConfig

TALK = {"messages": [{"role": "user", "content": "Sing."}, {"role": "assistant", "content": "Snow falls on the town."}]}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "talk.jsonl").write_text(json.dumps(TALK))
    (tmp_path / "note.txt").write_text("The river runs to the sea.")
    return tmp_path


def test_a_corpus_is_tokenised_as_the_target_reads_it(corpus: Path) -> None:
    tokenizer = load_tokenizer(DEMO_TARGET)
    make = corpus_index(str(corpus), str(DEMO_TARGET))
    assert make is not None
    index = pickle.loads(pickle.dumps(make))()  # as it travels to a router or an actor
    assert index is make()  # made once per process
    prompt = str(tokenizer.apply_chat_template(TALK["messages"][:1], tokenize=False, add_generation_prompt=True))
    for seen, following in ((prompt, "Snow"), ("The river runs", " to")):
        ids = tokenizer.backend_tokenizer.encode(seen, add_special_tokens=False).ids
        found = index.query(np.array(ids, np.int32), Limits())
        assert found is not None
        assert found.match == min(len(ids), 16)
        assert tokenizer.decode(found.tokens).startswith(following)


def test_without_a_chat_template_messages_are_a_text() -> None:
    tokenizer = load_tokenizer(DEMO_TARGET)
    tokenizer.chat_template = None
    talk = Document(origin="", messages=[Message("user", "Sing."), Message("assistant", "Snow falls.")])
    assert as_text(talk, tokenizer) == "Sing.\n\nSnow falls."
    assert conversation(talk.messages[:1], "", tokenizer, prompt=True) == "Sing.\n\n"


def test_a_conversation_that_the_template_refuses_is_named() -> None:
    tokenizer = load_tokenizer(DEMO_TARGET)
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    talk = Document(origin="log.jsonl, line 3", messages=[Message("user", "Sing.")])
    with pytest.raises(ConfigError, match=r"log\.jsonl, line 3: .*roles must alternate"):
        as_text(talk, tokenizer)


def test_a_server_makes_the_index_when_its_speculators_are_made(corpus: Path) -> None:
    config = ServeConfig(method="rest", retrieval=str(corpus), rest={"fill": False})
    options = pickle.loads(pickle.dumps(config.speculators()))
    assert options.rest == RestConfig(fill=False)
    assert SpeculatorPool(options).needs("pld+rest").probe_top_k == 0


def test_an_index_is_made_before_any_request() -> None:
    made: list[MemoryIndex] = []

    def make() -> MemoryIndex:
        made.append(MemoryIndex([[1, 2, 3]]))
        return made[-1]

    SpeculatorPool(SpeculatorOptions(retrieval=make))
    assert len(made) == 1


@pytest.mark.parametrize("where", ["nowhere", "redis://localhost:6379", "rediss://host"])
def test_a_missing_corpus_is_named_at_start(where: str) -> None:
    with pytest.raises(ConfigError, match=f"--retrieval {where}: "):
        config_from(argparse.Namespace(retrieval=where))


def test_a_broken_corpus_is_named_when_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"no": "form"}')
    make = corpus_index(str(tmp_path), str(DEMO_TARGET))
    assert make is not None
    with pytest.raises(ConfigError, match=r"--retrieval: .*bad\.jsonl, line 1"):
        make()
