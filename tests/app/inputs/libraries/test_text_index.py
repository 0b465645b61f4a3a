"""``--retrieval``: every form of it becomes a library where drafting happens, or one line that says what is wrong."""

from __future__ import annotations

import argparse
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli import main
from app.commands.serve import config_from
from app.composition.speculation import speculator_options
from app.config.serve import ServeConfig
from app.demo.paths import DEMO_TARGET
from app.inputs import libraries
from app.inputs.current_snapshot import snapshot_folder
from app.inputs.libraries import library_at
from app.inputs.stores import is_store
from app.inputs.text_index import as_text, conversation
from app.inputs.tokenizers import load_tokenizer
from engine.errors import ConfigError
from engine.model.identity import tokenizer_hash
from retrieval_store.index.index import FixedLibrary, Index, Library, Limits
from retrieval_store.index.memory import MemoryIndex
from retrieval_store.snapshots.corpus import Document, Message
from retrieval_store.snapshots.snapshot import read_manifest
from retrieval_store.stores.open import open_store
from speculators.corpus.rest import RestConfig
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions
from tests.support.redis_server import RedisServer
from tests.support.texts_to_look_up import GENERATE, TALK, written


def publish(folder: Path, where: str, namespace: str = "default") -> str:
    with closing(open_store(where, namespace)) as store:
        version = store.publish(folder)
        store.activate(version)
    return version


def the_index(library: Library) -> Index:
    [index] = library.of("anybody")
    return index


# -- text


def test_a_corpus_is_tokenised_as_the_target_reads_it(corpus: Path) -> None:
    tokenizer = load_tokenizer(DEMO_TARGET)
    make = library_at(str(corpus), str(DEMO_TARGET))
    assert make is not None
    library = pickle.loads(pickle.dumps(make))()  # as it travels to a router or an actor
    assert library is make()  # made once per process
    prompt = str(tokenizer.apply_chat_template(TALK["messages"][:1], tokenize=False, add_generation_prompt=True))
    for seen, following in ((prompt, "Snow"), ("The river runs", " to")):
        ids = tokenizer.backend_tokenizer.encode(seen, add_special_tokens=False).ids
        found = the_index(library).query(np.array(ids, np.int32), Limits())
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
    options = pickle.loads(pickle.dumps(speculator_options(config)))
    assert options.rest == RestConfig(fill=False)
    assert SpeculatorPool(options).needs("pld+rest").probe_top_k == 0


def test_a_library_is_made_before_any_request() -> None:
    made: list[Library] = []

    def make() -> Library:
        made.append(FixedLibrary(MemoryIndex([[1, 2, 3]])))
        return made[-1]

    SpeculatorPool(SpeculatorOptions(retrieval=make))
    assert len(made) == 1


def test_a_broken_corpus_is_named_when_it_is_read(corpus: Path, refused: Any) -> None:
    (corpus / "bad.jsonl").write_text('{"no": "form"}')
    said = refused("--retrieval", corpus)
    assert "bad.jsonl, line 1" in said


def test_none_is_no_library_and_nothing_at_a_place_is_an_error() -> None:
    assert library_at(None, "") is None
    assert library_at("none", "") is None
    with pytest.raises(ConfigError, match="--retrieval nowhere: no such"):
        config_from(argparse.Namespace(retrieval="nowhere"))


# -- snapshots and stores


@pytest.mark.parametrize(
    ("method", "form"),
    [(method, form) for method in ("spectra", "rest", "spectra-retrieval") for form in ("snapshot", "text")]
    + [("rest", "folder"), ("spectra", "redis"), ("spectra", "text folder"), ("spectra-retrieval", "builtin")],
)
def test_every_form_drafts_and_leaves_the_text_alone(
    method: str, form: str, answer: list[int], snapshot: Path, tiny_checkpoint: Path, generate: Any, tmp_path: Path,
    request: pytest.FixtureRequest, small_builtin: None
) -> None:  # fmt: skip
    where = str(snapshot)
    if form in ("folder", "redis"):
        where = str(tmp_path / "store") if form == "folder" else request.getfixturevalue("redis").url
        publish(snapshot, where)
    elif form == "builtin":
        where = form
    elif form != "snapshot":
        (tmp_path / "texts").mkdir()
        (tmp_path / "texts" / "a.txt").write_text("The quick brown fox jumps over the lazy dog.")
        where = str(tmp_path / "texts" if form == "text folder" else tmp_path / "texts" / "a.txt")
    line, _ = generate("--method", method, "--retrieval", where)
    assert line["token_ids"] == answer
    assert line["drafted_tokens"] > 0
    if form in ("snapshot", "folder", "redis"):
        assert line["tokens_per_forward"] > 3


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def test_the_namespace_chooses_among_a_stores_snapshots(
    generate: Any, refused: Any, snapshot: Path, tmp_path: Path
) -> None:
    where = str(tmp_path / "store")
    publish(snapshot, where, "tenant-2")
    line, _ = generate("--method", "rest", "--retrieval", where, "--retrieval-namespace", "tenant-2")
    assert line["accepted_tokens"] > 0
    said = refused("--retrieval", where)
    assert "namespace 'default' has no current snapshot" in said
    assert "spectra corpus publish DIR --store" in said


def test_what_is_current_at_the_start_is_taken_and_kept(snapshot: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    where = str(tmp_path / "store")
    first = publish(snapshot, where)
    make = library_at(where, str(tiny_checkpoint))
    assert make is not None
    assert make.label.endswith(first)
    second = publish(written([5, 6, 7, 8], tiny_checkpoint, tmp_path / "second"), where)
    assert make.label.endswith(first)
    libraries._opened.cache_clear()  # what another process would find
    assert make.label.endswith(second)


def test_while_a_store_is_away_what_was_fetched_last_is_used_and_said_so(
    generate: Any, refused: Any, snapshot: Path
) -> None:
    with RedisServer() as server:
        version = publish(snapshot, server.url)
        flags = ("--method", "rest", "--retrieval", server.url)
        online, said = generate(*flags)
        assert said == ""
        server.kill()
        libraries._opened.cache_clear()
        offline, said = generate(*flags)
        [line] = said.splitlines()
        assert line.startswith(f"spectra: --retrieval: {server.url}: ")
        assert f"going on with version {version}, which was fetched earlier" in line
        assert offline["step_tokens"] == online["step_tokens"]
        shutil.rmtree(snapshot_folder())
        libraries._opened.cache_clear()
        assert "no snapshot was fetched from there before" in refused("--retrieval", server.url)


def test_a_snapshot_of_another_tokenizer_is_refused_by_name(refused: Any, tmp_path: Path) -> None:
    foreign = written([1, 2, 3], DEMO_TARGET, tmp_path / "foreign")
    version = read_manifest(foreign).version
    publish(foreign, str(tmp_path / "store"))
    for where in (foreign, tmp_path / "store"):
        said = refused("--retrieval", where)
        assert version in said
        assert tokenizer_hash(DEMO_TARGET) in said


def test_a_damaged_snapshot_is_refused_by_name(refused: Any, snapshot: Path) -> None:
    name = next(iter(read_manifest(snapshot).files))
    (snapshot / name).write_bytes(b"?")
    said = refused("--retrieval", snapshot)
    assert name in said
    assert str(snapshot) in said


def test_a_password_is_not_shown(refused: Any, tiny_checkpoint: Path) -> None:
    where = "redis://user:open-sesame@127.0.0.1:1/0"
    said = refused("--retrieval", where)
    assert "127.0.0.1:1" in said
    assert "open-sesame" not in said
    assert "open-sesame" not in repr(library_at(where, str(tiny_checkpoint)))


@pytest.mark.parametrize("where", ["ftp://host/x", "redis://"])
def test_a_url_that_is_no_store_is_named(where: str, refused: Any) -> None:
    assert where in refused("--retrieval", where)


def test_what_is_a_store_is_told_from_text_and_snapshots(snapshot: Path, corpus: Path, tmp_path: Path) -> None:
    publish(snapshot, str(tmp_path / "store"), "a/b")
    stores = (str(tmp_path / "store"), "redis://host", "rediss://host:1/0", "redis+sentinel://a:1,b:2/name")
    assert [is_store(where) for where in stores] == [True] * len(stores)
    assert not any(is_store(str(where)) for where in (snapshot, corpus, corpus / "note.txt", "builtin", "nowhere"))


def test_a_bench_says_which_snapshot_it_read(
    snapshot: Path, tiny_checkpoint: Path, tmp_path: Path, capsys: Any
) -> None:
    where = str(tmp_path / "store")
    version = publish(snapshot, where)
    (tmp_path / "q.jsonl").write_text(json.dumps({"turns": ["The quick brown fox"]}))
    flags = ["--prompts", str(tmp_path / "q.jsonl"), "--methods", "rest", "--max-new-tokens", "8"]
    for one in (where, str(snapshot)):
        out = tmp_path / "out" / Path(one).name
        capsys.readouterr()
        assert main(["bench", "--model", str(tiny_checkpoint), *flags, "--out", str(out), "--retrieval", one]) == 0
        document = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert document["settings"]["retrieval"].endswith(f", version {version}")


def test_a_replay_looks_up_a_snapshot(
    answer: list[int], snapshot: Path, tiny_checkpoint: Path, tmp_path: Path, capsys: Any
) -> None:
    line = {"prompt": "The quick brown fox", "answer": load_tokenizer(tiny_checkpoint).decode(answer)}
    (tmp_path / "logs.jsonl").write_text(json.dumps(line))
    flags = ["--replay", str(tmp_path / "logs.jsonl"), "--tokenizer", str(tiny_checkpoint), "--methods", "rest"]
    publish(snapshot, str(tmp_path / "store"), "logs")
    capsys.readouterr()
    assert main(["bench", *flags, "--retrieval", str(tmp_path / "store"), "--retrieval-namespace", "logs"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["settings"]["retrieval"].endswith(read_manifest(snapshot).version)
    assert document["methods"]["rest"]["tokens_per_forward"] > 1
    assert main(["bench", *flags, "--retrieval", "nowhere"]) == 2
    assert "--retrieval nowhere: no such" in capsys.readouterr().err


def test_the_command_in_its_own_process_reads_a_store(
    answer: list[int], snapshot: Path, tiny_checkpoint: Path, redis: RedisServer
) -> None:
    publish(snapshot, redis.url, "own")
    flags = ["--method", "spectra", "--retrieval", redis.url, "--retrieval-namespace", "own"]
    command = [sys.executable, "-m", "app.cli", "generate", "--model", str(tiny_checkpoint), *GENERATE, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["token_ids"] == answer
    assert done.stderr == ""
