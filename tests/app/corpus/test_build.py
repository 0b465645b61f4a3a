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

from app.inputs.stores import DEFAULT_NAMESPACE
from app.inputs.text_index import as_text
from app.inputs.tokenizers import load_tokenizer
from engine.model.identity import model_hash, tokenizer_hash
from engine.model.loader import load_spec
from retrieval_store.snapshots.corpus import read_documents
from retrieval_store.snapshots.snapshot import verify
from retrieval_store.snapshots.snapshot_index import open_snapshot
from retrieval_store.stores.open import open_store
from tests.app.corpus.conftest import Build, sentence


def perplexity(model: Any, ids: list[int]) -> float:
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, :-1]
    return float(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:])).exp())


def report_of(out: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((out.with_name(f"{out.name}.report") / "report.json").read_text())
    return report


def test_the_likeliest_texts_are_kept(build: Build, corpus: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    ran = build("--input", corpus / "talk.jsonl", "--keep", 7, "--select", "likely")
    assert ran.status == 0, ran.err
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
    document = ran.document
    assert document["version"] == verify(tmp_path / "out").version
    assert (document["texts"], document["tokens"]) == (7, sum(len(ids[i]) for i in best))
    assert document["perplexity"] == list(about.perplexity or ())
    assert not (tmp_path / "out.work").exists()


def test_the_report_gives_the_reason_for_every_choice(build: Build, corpus: Path, tmp_path: Path) -> None:
    inputs = ("--input", corpus / "talk.jsonl", "--input", corpus / "code")
    ran = build(*inputs, "--keep", 20, "--piece-tokens", 250, "--select", "likely")
    report = report_of(tmp_path / "out")
    talk, code = report["inputs"]
    assert [talk[key] for key in ("documents", "texts", "too_short", "repeated", "scored")] == [32, 32, 1, 1, 30]
    assert (code["documents"], code["bytes"]) == (2, sum(f.stat().st_size for f in (corpus / "code").glob("*.py")))
    assert code["texts"] > 5
    assert talk["kept"] + code["kept"] == report["total"]["kept"] == 20
    assert report["total"]["perplexity"]["kept"]["highest"] <= report["total"]["perplexity"]["dropped"]["lowest"]
    folder = tmp_path / "out.report"
    examples = [json.loads(line) for line in (folder / "kept.jsonl").read_text().splitlines()]
    kept = {"lowest": True, "just kept": True, "just dropped": False, "highest": False}
    assert {one["place"]: one["kept"] for one in examples} == kept
    assert (folder / "perplexity.png").read_bytes().startswith(b"\x89PNG")
    row = next(line.split() for line in ran.out.splitlines() if line.startswith(str(corpus / "talk.jsonl")))
    assert row[1:7] == ["32", "1", "1", "0", "30", str(talk["kept"])]


def test_pieces_respect_their_limit_and_lose_nothing(
    build: Build, corpus: Path, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    file = corpus / "code" / "all.py"
    flags = ("--keep", 999, "--piece-tokens", 120, "--min-tokens", 2, "--unrefined")
    ran = build("--input", file, *flags)
    assert ran.status == 0, ran.err
    documents = list(open_snapshot(tmp_path / "out").documents())
    assert max(len(one) for one in documents) <= 120
    tokenizer = load_tokenizer(tiny_checkpoint)
    written = "".join(tokenizer.decode(one) for one in documents)
    assert file.read_text().removesuffix("\n").startswith(written.removesuffix("\n"))
    assert len(file.read_text()) - len(written) <= 1  # a last piece of one token is too short
    assert sum(tokenizer.decode(one).endswith("\n") for one in documents) > len(documents) / 2


def test_each_way_of_selecting_keeps_other_texts_within_the_budget(build: Build, corpus: Path, tmp_path: Path) -> None:
    inputs = ("--input", corpus / "talk.jsonl", corpus / "code", "--work", tmp_path / "work")
    versions, kept = {}, {}
    for name, flags, select in (
        ("cover", (), "cover"),
        ("cover per input", ("--per-input",), "cover"),
        ("cover unscored", ("--select", "cover", "--unrefined"), "cover"),
        ("likely", ("--select", "likely"), "likely"),
        ("sample", ("--unrefined",), "sample"),
        ("same sample", ("--unrefined",), "sample"),
        ("other sample", ("--unrefined", "--seed", 1), "sample"),
    ):
        ran = build(*inputs, "--keep-tokens", 600, *flags, out=tmp_path / name)
        assert ran.status == 0, ran.err
        assert 0 < ran.document["tokens"] <= 600
        assert (ran.document["perplexity"] is None) == ("--unrefined" in flags)
        assert report_of(tmp_path / name)["select"] == select
        versions[name] = ran.document["version"]
        kept[name] = [one["kept"] for one in report_of(tmp_path / name)["inputs"]]
    assert len({versions[name] for name in ("cover", "likely", "sample", "other sample")}) == 4
    assert versions["sample"] == versions["same sample"]
    assert kept["cover"] != kept["cover per input"]
    assert verify(tmp_path / "sample").about.model == ""
    assert {path.name for path in (tmp_path / "sample.report").iterdir()} == {"report.json", "kept.jsonl"}


@pytest.mark.parametrize("flags", [(), ("--unrefined",)], ids=["refined", "unrefined"])
def test_texts_outside_the_vocabulary_of_the_model_are_dropped_and_counted(
    flags: tuple[str, ...], build: Build, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(tiny_checkpoint, tmp_path / "model")
    tokenizer = load_tokenizer(model)  # it will know <beyond>, which the model does not
    missing = load_spec(model).vocab_size - len(tokenizer)
    tokenizer.add_tokens([*(f"<filler {i}>" for i in range(missing)), "<beyond>"])
    tokenizer.save_pretrained(model)
    lines = [sentence(np.random.default_rng(i), 30) for i in range(6)]
    lines[2] += " <beyond> " + lines[0]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    words = ("--input", tmp_path / "texts.jsonl", "--keep", 6, "--piece-tokens", 4000, *flags)
    assert build(*words, model=model).status == 0
    manifest = open_snapshot(tmp_path / "out", tokenizer_hash(model)).manifest
    assert (manifest.texts, manifest.about.vocab_size) == (5, load_spec(model).vocab_size)
    total = report_of(tmp_path / "out")["total"]
    assert (total["outside_vocabulary"], total["kept"]) == (1, 5)
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": lines[2]}) + "\n")
    ran = build(*words, "--force", model=model)
    assert (ran.status, "outside the vocabulary" in ran.err) == (2, True)


def test_a_build_can_publish(build: Build, corpus: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    for namespace, flags in ((DEFAULT_NAMESPACE, ()), ("team", ("--namespace", "team"))):
        ran = build("--input", corpus, "--keep", 5, "--unrefined", "--force", "--redis", url, *flags)
        assert ran.status == 0, ran.err
        store = open_store(url, namespace)
        assert store.current().version == ran.document["version"]
        store.close()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--input nowhere --keep 5", "--input nowhere: no such file or folder"),
        ("--input FILE", "give --keep N or --keep-tokens T"),
        ("--input FILE --keep-tokens 9", "--keep-tokens 9: the first text has more"),
        ("--input FILE --keep 5 --min-tokens 1000", "--min-tokens 1000: every text is shorter"),
        ("--input FILE --keep 5 --piece-tokens 7", "--piece-tokens is 7; it must be at least --min-tokens"),
        ("--input FILE --keep 5 --piece-tokens 4096", "--piece-tokens is 4096; .* reads at most 4095 tokens"),
        ("--input FILE --keep 5 --device tpu", "--device is tpu; it must be cpu, cuda, cuda:N or auto"),
        ("--input FILE --keep 5 --device cpu,cpu,cpu,cpu,cpu", "--device .*has only 4 layers"),
        ("--input FILE --keep 5 --unrefined --select likely", "--select likely needs scores"),
        ("--input FILE --keep 5 --namespace a", "--namespace is a, but there is no store; give --redis URL"),
        ("--input FILE --keep 5 --redis ftp://x", "--redis: "),
        ("--input EMPTY --keep 5", "--input .*empty.txt: the inputs hold no text"),
        ("--input WRONG --keep 5", "--input .*wrong.jsonl, line 2"),
        ("--input FILE --keep 5 --model BARE", "--model .*/bare: "),
        ("--input FILE --keep 5 --model ./absent", "--model ./absent: "),
    ],
)
def test_a_build_that_cannot_run_names_the_flag(
    words: str, says: str, build: Build, corpus: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "wrong.jsonl").write_text('{"text": "fine, and longer than eight tokens"}\n{"no": 1}\n')
    (tmp_path / "bare").mkdir()  # a model without a tokenizer
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tiny_checkpoint / name, tmp_path / "bare")
    places = {
        "FILE": corpus / "code" / "one.py",
        "EMPTY": tmp_path / "empty.txt",
        "WRONG": tmp_path / "wrong.jsonl",
        "BARE": tmp_path / "bare",
    }
    ran = build(*(places.get(word, word) for word in words.split()))
    assert (ran.status, ran.out) == (2, "")
    last = ran.err.splitlines()[-1]
    assert re.match(f"spectra: {says}", last), last
    assert not (tmp_path / "out").exists()
