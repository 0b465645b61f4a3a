"""``--retrieval``: every form of it becomes a library where drafting happens, or one line that says what is wrong."""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
import torch

from app.cli import main
from app.commands.serve import config_from
from app.composition import library, speculator_options
from app.config.serve import ServeConfig
from app.demo.paths import DEMO_TARGET
from app.inputs import builtin_corpus, libraries
from app.inputs.builtin_corpus import builtin_snapshot
from app.inputs.cache import cache_folder
from app.inputs.current_snapshot import snapshot_folder
from app.inputs.libraries import LibraryAt, library_at, prepare
from app.inputs.stores import is_store
from app.inputs.text_index import as_text, conversation
from app.inputs.tokenizers import load_tokenizer
from app.serving.preflight import check_model
from engine.errors import ConfigError, UnsupportedModelError
from engine.model.identity import tokenizer_hash
from retrieval_store.index.index import FixedLibrary, Index, Library, Limits
from retrieval_store.index.memory import MemoryIndex
from retrieval_store.snapshots.corpus import Document, Message
from retrieval_store.snapshots.snapshot import Description, read_manifest
from retrieval_store.snapshots.snapshot_index import open_snapshot
from retrieval_store.snapshots.snapshot_writer import write_snapshot
from retrieval_store.stores.open import open_store
from speculators.corpus.rest import RestConfig
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions
from tests.support.redis_server import RedisServer

TALK = {"messages": [{"role": "user", "content": "Sing."}, {"role": "assistant", "content": "Snow falls on the town."}]}
SMALL = 20_000  # characters of the built-in corpus in tests
GENERATE = ("--prompt", "The quick brown fox", "--raw", "--max-new-tokens", "60", "--json")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test meets another one's snapshots; the command sets the number of threads of the process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    libraries._opened.cache_clear()
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "talk.jsonl").write_text(json.dumps(TALK))
    (folder / "note.txt").write_text("The river runs to the sea.")
    return folder


@pytest.fixture
def small_builtin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A built-in corpus that takes no time."""
    monkeypatch.setattr(builtin_corpus, "MAX_CHARS", SMALL)


@pytest.fixture
def generate(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[dict[str, Any], str]]:
    """``generate("--method", "rest", ...)``: the JSON line and stderr."""

    def run(*flags: object) -> tuple[dict[str, Any], str]:
        capsys.readouterr()
        assert main(["generate", "--model", str(tiny_checkpoint), *GENERATE, *map(str, flags)]) == 0
        said = capsys.readouterr()
        line: dict[str, Any] = json.loads(said.out)
        return line, said.err

    return run


@pytest.fixture
def refused(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The last line on stderr of ``spectra generate`` with a ``--retrieval`` that it refuses."""

    def run(*flags: object) -> str:
        capsys.readouterr()
        flags = ("--method", "rest", *flags)
        assert main(["generate", "--model", str(tiny_checkpoint), *GENERATE, *map(str, flags)]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        line = said.err.splitlines()[-1]
        assert line.startswith("spectra: --retrieval")
        return line

    return run


@pytest.fixture
def answer(generate: Any) -> list[int]:
    """What the tiny model writes behind the prompt."""
    line, _ = generate("--method", "autoregressive")
    ids: list[int] = line["token_ids"]
    return ids


@pytest.fixture
def snapshot(answer: list[int], tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A snapshot that knows the answer."""
    return written(answer, tiny_checkpoint, tmp_path / "snapshot")


def written(ids: list[int], model: Path, folder: Path) -> Path:
    about = Description(tokenizer_hash=tokenizer_hash(model), vocab_size=320)
    write_snapshot([np.array(ids, np.int32)], folder, about)
    return folder


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


@pytest.mark.parametrize("method", ["spectra", "rest", "spectra-retrieval"])
@pytest.mark.parametrize("form", ["snapshot", "folder", "redis", "text", "text folder", "builtin"])
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


# -- the built-in snapshot


def test_the_built_in_snapshot_is_built_once_per_tokenizer(
    small_builtin: None, tiny_checkpoint: Path, capsys: Any
) -> None:
    folder = builtin_snapshot(DEMO_TARGET)
    assert folder.parent == cache_folder() / "snapshots"
    assert capsys.readouterr().err.splitlines()[0] == "Indexing the standard library (once) ..."
    written_at = folder.stat().st_mtime_ns
    assert builtin_snapshot(DEMO_TARGET) == folder
    assert folder.stat().st_mtime_ns == written_at
    assert capsys.readouterr().err == ""
    assert builtin_snapshot(tiny_checkpoint) != folder
    tokenizer = load_tokenizer(DEMO_TARGET)
    ids = tokenizer.backend_tokenizer.encode(topics["import"][:80], add_special_tokens=False).ids
    found = open_snapshot(folder, tokenizer_hash(DEMO_TARGET)).query(np.array(ids[:-1], np.int32), Limits())
    assert found is not None
    assert found.tokens


def test_the_built_in_corpus_is_bounded_and_holds_no_installed_packages() -> None:
    texts = list(builtin_corpus.documents())
    code = [text for text in texts if not text.origin.startswith("topic ")]
    assert sum(len(text.text) for text in code) <= builtin_corpus.MAX_CHARS
    assert sum(len(text.text) for text in code) > 0.9 * builtin_corpus.MAX_CHARS
    assert not any("site-packages" in text.origin for text in code)
    assert any("import" in text.origin for text in texts if text not in code)


def _build(model: str) -> str:
    builtin_corpus.MAX_CHARS = SMALL
    return str(builtin_snapshot(Path(model)))


def test_processes_that_ask_at_once_build_one_snapshot(tiny_checkpoint: Path) -> None:
    with multiprocessing.get_context("fork").Pool(3) as pool:
        folders = pool.map(_build, [str(tiny_checkpoint)] * 3)
    assert len(set(folders)) == 1
    assert [path.name for path in snapshot_folder().iterdir() if path.is_dir()] == [Path(folders[0]).name]


def test_a_damaged_or_half_built_snapshot_is_built_again(small_builtin: None, tiny_checkpoint: Path) -> None:
    folder = builtin_snapshot(tiny_checkpoint)
    version = read_manifest(folder).version
    name = next(iter(read_manifest(folder).files))
    os.truncate(folder / name, 3)
    left_over = folder.with_name(f".{folder.name}.1.partial")
    left_over.mkdir()
    assert read_manifest(builtin_snapshot(tiny_checkpoint)).version == version
    open_snapshot(folder)
    assert not left_over.exists()


@pytest.mark.parametrize(
    ("given", "where"), [({}, "builtin"), ({"retrieval": "none"}, None), ({"model": "elsewhere"}, None)], ids=str
)
def test_only_the_demo_model_has_it_by_default(given: dict[str, Any], where: str | None) -> None:
    found = library(ServeConfig(**given))
    assert (found and found.where) == where


@pytest.mark.parametrize(
    ("given", "drafts"),
    [
        ({}, False),
        ({"retrieval": "builtin"}, True),
        ({"auto": {"retrieval": True}}, True),
        ({"retrieval": "none"}, True),
    ],
)
def test_auto_drafts_from_built_in_texts_only_where_a_flag_asks_for_them(given, drafts):
    assert speculator_options(ServeConfig(**given)).auto.retrieval is drafts


def test_a_server_without_a_place_for_it_starts_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    config = ServeConfig()
    with caplog.at_level(logging.WARNING):
        prepare(library(config))
        pool = SpeculatorPool(speculator_options(config))
    assert "retrieval from builtin is left out" in caplog.text
    assert pool.needs("spectra") is not None
    with pytest.raises(ConfigError, match=r"--retrieval builtin: .*file"):
        prepare(library(ServeConfig(retrieval="builtin")))


def test_a_server_builds_it_before_it_starts_and_leaves_text_and_stores_alone(
    small_builtin: None, corpus: Path, tmp_path: Path, snapshot: Path
) -> None:
    prepare(library(ServeConfig()))
    assert list(snapshot_folder().glob("builtin-*/manifest.json"))
    (corpus / "bad.jsonl").write_text('{"no": "form"}')
    prepare(library(ServeConfig(retrieval=str(corpus))))  # is read by replicas
    prepare(library(ServeConfig(retrieval="redis://127.0.0.1:1")))  # may come up later
    with pytest.raises(ConfigError, match=r"--retrieval .*tokenizer"):
        prepare(library(ServeConfig(retrieval=str(snapshot))))


def test_a_server_of_the_demo_model_builds_it_among_its_checks(small_builtin: None, capsys: Any) -> None:
    check_model(ServeConfig(method="spectra"), is_local=True)
    assert "Indexing the standard library (once) ..." in capsys.readouterr().err
    assert list(snapshot_folder().glob("builtin-*/manifest.json"))


def test_a_tokenizer_without_its_file_is_named(snapshot: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.json"):
        LibraryAt(str(snapshot), str(tmp_path / "model"))()
