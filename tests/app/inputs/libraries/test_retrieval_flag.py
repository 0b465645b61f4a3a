"""``--retrieval``: each of its forms becomes a library where drafting happens, or one line that says what is wrong."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from app.composition.speculation import speculator_options
from app.config.serve import ServeConfig
from app.inputs import libraries
from app.inputs.libraries import library_at
from app.inputs.stores import snapshot_folder
from app.inputs.text_index import as_text, conversation
from app.inputs.tokenizers import load_tokenizer
from engine.errors import ConfigError
from engine.model.identity import tokenizer_hash
from retrieval_store.index.index import FixedLibrary, Library, Limits
from retrieval_store.index.memory import MemoryIndex
from retrieval_store.snapshots.corpus import ConversationMessage, Document
from retrieval_store.snapshots.snapshot import read_manifest
from retrieval_store.stores.open import open_store
from speculators.corpus.rest import RestConfig
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool
from tests.app.inputs.libraries.conftest import TALK, Generate, write
from tests.support.redis_server import RedisServer
from tests.support.tiny_models import saved_checkpoint


def publish(folder: Path, where: str, namespace: str = "default") -> str:
    with closing(open_store(where, namespace)) as store:
        version = store.publish(folder)
        store.activate(version)
    return version


def refusal(where: object, model: Path) -> str:
    with pytest.raises(ConfigError, match=r"^--retrieval") as refused:
        library_at(str(where), str(model))()  # type: ignore[misc]
    return str(refused.value)


def test_a_corpus_is_tokenised_as_the_target_reads_it(corpus: Path, tiny_checkpoint: Path) -> None:
    tokenizer = load_tokenizer(tiny_checkpoint)
    make = library_at(str(corpus), str(tiny_checkpoint))
    assert make is not None
    library = pickle.loads(pickle.dumps(make))()  # it is sent to routers and actors
    assert library is make()  # made once per process
    [index] = library.of("anybody")
    prompt = str(tokenizer.apply_chat_template(TALK["messages"][:1], tokenize=False, add_generation_prompt=True))
    for seen, following in ((prompt, "Snow"), ("The river runs", " to")):
        ids = tokenizer.backend_tokenizer.encode(seen, add_special_tokens=False).ids
        found = index.query(np.array(ids, np.int32), Limits())
        assert found is not None
        assert found.match == min(len(ids), 16)
        assert tokenizer.decode(found.tokens).startswith(following)


def test_messages_are_paragraphs_without_a_chat_template_and_refused_by_one_that_raises(tiny_checkpoint: Path) -> None:
    tokenizer = load_tokenizer(tiny_checkpoint)
    tokenizer.chat_template = None
    talk = Document(
        origin="a, line 3",
        messages=[ConversationMessage("user", "Sing."), ConversationMessage("assistant", "Snow falls.")],
    )
    assert as_text(talk, tokenizer) == "Sing.\n\nSnow falls."
    assert conversation(talk.messages[:1], "", tokenizer, prompt=True) == "Sing.\n\n"
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ConfigError, match=r"a, line 3: .*roles must alternate"):
        as_text(talk, tokenizer)


def test_a_server_builds_the_library_with_its_speculators_before_any_request(
    corpus: Path, tiny_checkpoint: Path
) -> None:
    config = ServeConfig(model=str(tiny_checkpoint), method="rest", retrieval=str(corpus), rest={"fill": False})
    options = pickle.loads(pickle.dumps(speculator_options(config)))
    assert options.settings_of(RestConfig) == RestConfig(fill=False)
    assert SpeculatorPool(options).needs("pld+rest").probe_top_k == 0
    built: list[Library] = [FixedLibrary(MemoryIndex([[1, 2, 3]]))]
    SpeculatorPool(SpeculatorOptions(retrieval=built.pop))
    assert not built
    assert library_at(None, "") is library_at("none", "") is None


@pytest.fixture
def place(request: pytest.FixtureRequest, snapshot: Path, tmp_path: Path) -> Iterator[str]:
    """A value of ``--retrieval``, of the form that the test is parametrised with."""
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("The quick brown fox jumps over the lazy dog.")
    if request.param == "redis":
        with RedisServer() as server:
            publish(snapshot, server.url)
            yield server.url
        return
    if request.param == "store":
        publish(snapshot, str(tmp_path / "store"))
    places = {"texts": texts, "snapshot": snapshot, "store": tmp_path / "store"}
    yield str(places.get(request.param, request.param))


@pytest.mark.usefixtures("small_builtin")
@pytest.mark.parametrize(
    ("method", "place"),
    [
        ("spectra", "snapshot"),
        ("rest", "store"),
        ("spectra-retrieval", "texts"),
        ("spectra", "builtin"),
        pytest.param("spectra", "redis", marks=pytest.mark.cluster),
    ],
    indirect=["place"],
)
def test_every_form_drafts_and_changes_no_text(method: str, place: str, answer: list[int], generate: Generate) -> None:
    line = generate("--method", method, "--retrieval", place).document
    assert line["token_ids"] == answer
    assert line["drafted_tokens"] > 0
    if "text" not in place and place != "builtin":  # snapshots hold the answer
        assert line["tokens_per_forward"] > 3


def test_the_namespace_chooses_among_the_snapshots_of_a_store(
    generate: Generate, snapshot: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    where = str(tmp_path / "store")
    publish(snapshot, where, "tenant-2")
    ran = generate("--method", "rest", "--retrieval", where, "--retrieval-namespace", "tenant-2")
    assert ran.document["accepted_tokens"] > 0
    make = library_at(where, str(tiny_checkpoint), "tenant-2")
    assert make is not None
    first = make.label
    second = publish(write([5, 6, 7, 8], tiny_checkpoint, tmp_path / "second"), where, "tenant-2")
    assert make.label == first  # a process keeps the snapshot that was current when it started
    libraries._opened.cache_clear()  # another process finds the second
    assert make.label.endswith(second)
    said = refusal(where, tiny_checkpoint)
    assert "namespace 'default' has no current snapshot" in said
    assert "spectra corpus publish DIR --store" in said


@pytest.mark.cluster
def test_while_a_store_is_down_the_snapshot_fetched_last_is_used_with_a_warning(
    generate: Generate, snapshot: Path, tiny_checkpoint: Path
) -> None:
    with RedisServer() as server:
        version = publish(snapshot, server.url)
        flags = ("--method", "rest", "--retrieval", server.url)
        online = generate(*flags)
        assert online.err == ""
        server.kill()
        libraries._opened.cache_clear()
        offline = generate(*flags)
        [line] = offline.err.splitlines()
        assert line.startswith(f"spectra: --retrieval: {server.url}: ")
        assert f"using version {version}, which was fetched earlier" in line
        assert offline.document["step_tokens"] == online.document["step_tokens"]
        shutil.rmtree(snapshot_folder())
        libraries._opened.cache_clear()
        assert "no snapshot was fetched from there before" in refusal(server.url, tiny_checkpoint)


def test_a_library_that_cannot_be_read_is_refused_by_name(
    corpus: Path, snapshot: Path, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    (corpus / "bad.jsonl").write_text('{"no": "form"}')
    assert "bad.jsonl, line 1" in refusal(corpus, tiny_checkpoint)
    other = saved_checkpoint(400)
    foreign = write([1, 2, 3], other, tmp_path / "foreign")
    publish(foreign, str(tmp_path / "store"))
    for where in (foreign, tmp_path / "store"):
        said = refusal(where, tiny_checkpoint)
        assert read_manifest(foreign).version in said
        assert tokenizer_hash(other) in said
    name = next(iter(read_manifest(snapshot).files))
    (snapshot / name).write_bytes(b"?")
    said = refusal(snapshot, tiny_checkpoint)
    assert name in said
    assert str(snapshot) in said
    where = "redis://user:open-sesame@127.0.0.1:1/0"
    said = refusal(where, tiny_checkpoint) + repr(library_at(where, str(tiny_checkpoint)))
    assert "127.0.0.1:1" in said
    assert "open-sesame" not in said
