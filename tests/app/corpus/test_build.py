"""``spectra corpus build``: from files to a snapshot, a report and a store."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from app.inputs import builtin_corpus
from app.inputs.stores import DEFAULT_NAMESPACE
from app.inputs.text_index import as_text
from app.inputs.tokenizers import load_tokenizer
from engine.model.identity import model_hash, tokenizer_hash
from engine.model.loader import load_spec
from retrieval_store.snapshots.corpus import Document, read_documents
from retrieval_store.snapshots.snapshot import verify
from retrieval_store.snapshots.snapshot_index import open_snapshot
from retrieval_store.stores.open import open_store
from tests.app.corpus.conftest import Run, sentence


def perplexity(model: Any, ids: list[int]) -> float:
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, :-1]
    return float(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:])).exp())


def test_the_likeliest_texts_are_kept(spectra: Run, corpus: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    status, out, _ = spectra("--input", corpus / "talk.jsonl", "--keep", 7, "--select", "likely")
    assert status == 0
    tokenizer, model = load_tokenizer(tiny_checkpoint), AutoModelForCausalLM.from_pretrained(tiny_checkpoint).float()
    texts = [as_text(document, tokenizer) for document in read_documents(corpus / "talk.jsonl")]
    ids = [tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids for text in texts[:30]]
    scores = [perplexity(model, one) for one in ids]
    best = sorted(np.argsort(scores)[:7].tolist())
    index = open_snapshot(tmp_path / "out", tokenizer_hash(tiny_checkpoint))
    assert [one.tolist() for one in index.documents()] == [ids[i] for i in best]
    about = index.manifest.about
    assert about.perplexity == pytest.approx((min(scores), sorted(scores)[6]), rel=1e-4)
    assert (about.model, about.model_hash) == (tiny_checkpoint.name, model_hash(tiny_checkpoint))
    assert [(one.name, one.texts, one.kept) for one in about.sources] == [(str(corpus / "talk.jsonl"), 32, 7)]
    document = json.loads(out.splitlines()[-1])
    assert document["version"] == verify(tmp_path / "out").version
    assert (document["texts"], document["tokens"]) == (7, sum(len(ids[i]) for i in best))
    assert document["perplexity"] == list(about.perplexity or ())
    assert not (tmp_path / "out.work").exists()


def test_the_report_says_what_was_kept_and_why(spectra: Run, corpus: Path, tmp_path: Path) -> None:
    status, out, _ = spectra(
        "--input", corpus / "talk.jsonl", "--input", corpus / "code", "--keep", 20, "--piece-tokens", 250,
        "--select", "likely",
    )  # fmt: skip
    assert status == 0
    folder = tmp_path / "out.report"
    report = json.loads((folder / "report.json").read_text())
    talk, code = report["inputs"]
    assert [talk[key] for key in ("documents", "texts", "too_short", "repeated", "scored")] == [32, 32, 1, 1, 30]
    assert (code["documents"], code["bytes"]) == (2, sum(f.stat().st_size for f in (corpus / "code").glob("*.py")))
    assert code["texts"] > 5
    assert talk["kept"] + code["kept"] == report["total"]["kept"] == 20
    assert report["total"]["perplexity"]["kept"]["highest"] <= report["total"]["perplexity"]["dropped"]["lowest"]
    assert (
        0 < report["phases"]["scoring"]["tokens"] < report["phases"]["reading"]["tokens"] == report["total"]["tokens"]
    )
    assert report["phases"]["scoring"]["tokens_per_second"] > 0
    examples = [json.loads(line) for line in (folder / "kept.jsonl").read_text().splitlines()]
    assert {one["place"]: one["kept"] for one in examples} == {
        "lowest": True, "just kept": True, "just dropped": False, "highest": False
    }  # fmt: skip
    assert [one["perplexity"] for one in examples] == sorted(one["perplexity"] for one in examples)
    assert all(one["origin"].startswith(str(corpus)) and one["text"] for one in examples)
    assert (folder / "perplexity.png").read_bytes().startswith(b"\x89PNG")
    table = [line.split() for line in out.splitlines()[:4]]
    assert [line[0] for line in table] == ["input", str(corpus / "talk.jsonl"), str(corpus / "code"), "all"]
    assert table[1][1:7] == ["32", "1", "1", "0", "30", str(talk["kept"])]


def test_pieces_are_no_longer_than_asked_for_and_nothing_is_lost(
    spectra: Run, corpus: Path, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    file = corpus / "code" / "all.py"
    assert spectra("--input", file, "--keep", 999, "--piece-tokens", 120, "--min-tokens", 2)[0] == 0
    documents = list(open_snapshot(tmp_path / "out").documents())
    assert max(len(one) for one in documents) <= 120
    tokenizer = load_tokenizer(tiny_checkpoint)
    written = "".join(tokenizer.decode(one) for one in documents)
    assert file.read_text().removesuffix("\n").startswith(written.removesuffix("\n"))
    assert len(file.read_text()) - len(written) <= 1  # a last piece of one token is too short
    assert sum(tokenizer.decode(one).endswith("\n") for one in documents) > len(documents) / 2


def test_every_input_keeps_its_share_when_asked(spectra: Run, corpus: Path, tmp_path: Path) -> None:
    inputs = ("--input", corpus / "talk.jsonl", corpus / "code", "--piece-tokens", 64, "--work", tmp_path / "work")
    kept = {}
    for flags in ((), ("--per-input",)):
        assert spectra(*inputs, "--keep", 15, "--select", "likely", *flags, out=tmp_path / f"out{len(flags)}")[0] == 0
        report = json.loads((tmp_path / f"out{len(flags)}.report" / "report.json").read_text())
        kept[flags] = [one["kept"] for one in report["inputs"]]
        scored = [one["scored"] for one in report["inputs"]]
    assert sum(kept[()]) == sum(kept["--per-input",]) == 15
    assert kept["--per-input",][0] == 15 * scored[0] // sum(scored) != kept[()][0]


def test_an_unrefined_corpus_is_a_sample_that_a_seed_decides(spectra: Run, corpus: Path, tmp_path: Path) -> None:
    versions = []
    for i, seed in enumerate((0, 0, 1)):
        status, out, err = spectra(
            "--input", corpus, "--keep-tokens", 600, "--unrefined", "--seed", seed, out=tmp_path / f"out{i}"
        )
        assert status == 0, err
        document = json.loads(out.splitlines()[-1])
        versions.append(document["version"])
        assert 500 < document["tokens"] <= 600
        assert document["perplexity"] is None
    assert versions[0] == versions[1] != versions[2]
    assert verify(tmp_path / "out0").about.model == ""
    report = {path.name for path in (tmp_path / "out0.report").iterdir()}
    assert report == {"report.json", "kept.jsonl"}


def test_texts_can_be_kept_for_what_they_cover(spectra: Run, corpus: Path, tmp_path: Path) -> None:
    found = {}
    covering = ((), ("--per-input",), ("--select", "cover", "--unrefined"))
    for flags in (*covering, ("--select", "likely"), ("--unrefined",)):
        out = tmp_path / f"out{len(found)}"
        inputs = ("--input", corpus / "talk.jsonl", corpus / "code", "--work", tmp_path / "work")
        status, said, err = spectra(*inputs, "--keep-tokens", 600, *flags, out=out)
        assert status == 0, err
        document = json.loads(said.splitlines()[-1])
        assert 0 < document["tokens"] <= 600
        assert (document["perplexity"] is None) == ("--unrefined" in flags)
        report = json.loads((tmp_path / f"{out.name}.report" / "report.json").read_text())
        assert report["select"] == ("cover" if flags in covering else "sample" if "--unrefined" in flags else "likely")
        found[flags] = document["version"]
    assert len({found[flags] for flags in ((), ("--select", "likely"), ("--unrefined",))}) == 3


@pytest.fixture
def small_vocabulary(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A model whose tokenizer knows ``<beyond>``, which the model does not."""
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "small vocabulary")
    tokenizer = load_tokenizer(folder)
    missing = load_spec(folder).vocab_size - len(tokenizer)
    tokenizer.add_tokens([*(f"<filler {i}>" for i in range(missing)), "<beyond>"])
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("flags", [(), ("--unrefined",)], ids=["refined", "unrefined"])
def test_texts_outside_the_models_vocabulary_are_dropped_and_counted(
    flags: tuple[str, ...], spectra: Run, small_vocabulary: Path, tmp_path: Path
) -> None:
    lines = [sentence(np.random.default_rng(i), 30) for i in range(6)]
    lines[2] += " <beyond> " + lines[0]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    words = ("--input", tmp_path / "texts.jsonl", "--keep", 6, "--piece-tokens", 4000, *flags)
    assert spectra(*words, model=small_vocabulary)[0] == 0
    index = open_snapshot(tmp_path / "out", tokenizer_hash(small_vocabulary))
    assert index.manifest.texts == 5
    assert index.manifest.about.vocab_size == load_spec(small_vocabulary).vocab_size
    report = json.loads((tmp_path / "out.report" / "report.json").read_text())
    assert (report["total"]["outside_vocabulary"], report["total"]["kept"]) == (1, 5)
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": lines[2]}) + "\n")
    status, _, err = spectra(*words, "--force", model=small_vocabulary)
    assert status == 2
    assert "outside the vocabulary" in err


def test_the_built_in_texts_stay_within_the_models_vocabulary(
    small_vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    texts = ("snow falls on the town", "snow <beyond> falls", "the river keeps running")
    monkeypatch.setattr(builtin_corpus, "documents", lambda: (Document(origin="here", text=text) for text in texts))
    manifest = verify(builtin_corpus.builtin_snapshot(small_vocabulary))
    assert (manifest.texts, manifest.about.vocab_size) == (2, load_spec(small_vocabulary).vocab_size)
    assert "1 texts are outside the vocabulary" in capsys.readouterr().err


def test_a_build_can_publish(spectra: Run, corpus: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    for namespace, flags in ((DEFAULT_NAMESPACE, ()), ("team", ("--namespace", "team"))):
        status, out, err = spectra("--input", corpus, "--keep", 5, "--force", "--redis", url, *flags)
        assert status == 0, err
        document = json.loads(out.splitlines()[-1])
        store = open_store(url, namespace)
        assert store.current().version == document["version"]
        store.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--input", "nowhere", "--keep", 5), "--input nowhere: no such file or folder"),
        (("--input", "F", "--keep", 0), "--keep is 0; it must be at least 1"),
        (("--input", "F"), "--keep N or --keep-tokens T is needed"),
        (("--input", "F", "--keep-tokens", 0), "--keep-tokens is 0"),
        (("--input", "F", "--keep-tokens", 9), "--keep-tokens 9: the first text to keep has more"),
        (("--input", "F", "--keep", 5, "--min-tokens", 1), "--min-tokens is 1; it must be at least 2"),
        (("--input", "F", "--keep", 5, "--min-tokens", 1000), "--min-tokens 1000: every text is shorter"),
        (("--input", "F", "--keep", 5, "--piece-tokens", 7), "--piece-tokens is 7; it must be at least --min-tokens"),
        (("--input", "F", "--keep", 5, "--piece-tokens", 4096), "--piece-tokens is 4096; .* reads at most 4095 tokens"),
        (("--input", "F", "--keep", 5, "--device", "tpu"), "--device is tpu; it must be cpu, cuda, cuda:N or auto"),
        (("--input", "F", "--keep", 5, "--device", "cpu,cpu,cpu,cpu,cpu"), "--device .*has only 4 layers"),
        (("--input", "F", "--keep", 5, "--dtype", "int3"), "dtype is 'int3'"),
        (("--input", "F", "--keep", 5, "--threads", 0), "--threads is 0"),
        (("--input", "F", "--keep", 5, "--unrefined", "--select", "likely"), "--select likely needs scores"),
        (("--input", "F", "--keep", 5, "--namespace", "a"), "--namespace a: give --redis URL"),
        (("--input", "F", "--keep", 5, "--redis", "redis://127.0.0.1:1"), "--redis: "),
        (("--input", "F", "--keep", 5, "--redis", "ftp://x"), "--redis: "),
        (("--input", "EMPTY", "--keep", 5), "--input .*empty.txt: the inputs hold no text"),
        (("--input", "BAD", "--keep", 5), r"--input .*bad.jsonl, line 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_one_line_that_names_the_flag(
    words: tuple[object, ...], said: str, spectra: Run, corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "bad.jsonl").write_text('{"text": "fine, and longer than eight tokens"}\n{"no": 1}\n')
    files = {"F": corpus / "code" / "one.py", "EMPTY": tmp_path / "empty.txt", "BAD": tmp_path / "bad.jsonl"}
    status, out, err = spectra(*(files.get(str(word), word) for word in words))
    assert (status, out) == (2, "")
    last = err.splitlines()[-1]
    assert re.match(f"spectra: {said}", last), last
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_tokenizer_is_named(
    spectra: Run, corpus: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tiny_checkpoint / name, bare)
    status, _, err = spectra("--input", corpus, "--keep", 5, model=bare)
    assert status == 2
    assert f"--model {bare}: " in err.splitlines()[-1]
    status, _, err = spectra("--input", corpus, "--keep", 5, model=tmp_path / "nowhere")
    assert status == 2
    assert f"--model {tmp_path / 'nowhere'}: " in err.splitlines()[-1]
