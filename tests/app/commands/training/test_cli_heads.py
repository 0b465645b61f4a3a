"""``spectra heads find`` and ``vocabulary read``, and where other commands and servers find their files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from app.composition.speculation import served_speculators
from app.config.serve import ServeConfig
from app.serving.preflight import check_model
from app.speculation import heads
from app.speculation.vocabulary import known_rows, rows_file
from engine.errors import ConfigError, UnknownMethodError
from engine.model.identity import model_hash
from engine.model.loader import load_spec
from engine.protocol import Needs
from speculators.pld_plus.induction_heads import read_heads
from speculators.pool import SpeculatorPool
from tests.support.spectra_command import generated, run_cli

PROMPT = "Snow falls on the quiet town. Snow falls on the quiet river. Snow falls"
GENERATE = ("--prompt", PROMPT, "--raw", "--max-tokens", 30, "--temperature", 0.7, "--seed", 3)

pytestmark = pytest.mark.usefixtures("own_cache")


def find(model: Path, out: Path, *more: object) -> str:
    prompts = out.parent / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"turns": [PROMPT[i:], "unused"]}) for i in range(5)))
    flags = ("--prompts", prompts, "--limit", 4, "--max-tokens", 30, "--keep", 5)
    ran = run_cli("heads", "find", "--model", model, "--out", out, *flags, *more)
    assert ran.status == 0, ran.err
    assert "4/4" in ran.err
    return ran.out


@pytest.fixture(scope="module")
def heads_file(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    out = tmp_path_factory.mktemp("heads") / "heads.json"
    printed = find(tiny_checkpoint, out, "--stages", 2)
    assert f"heads: {out}" in printed
    assert "hits per token" in printed
    return out


def test_the_file_holds_the_heads_of_this_model_best_first_for_any_batch_size(
    heads_file: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    found = read_heads(heads_file, model_hash(tiny_checkpoint), 4, 4)
    rates = [one.rate for one in found.heads]
    assert rates == sorted(rates, reverse=True)
    assert 0 < len(found.heads) <= 5
    assert 10 < found.n_tokens <= 120
    assert rates == pytest.approx([found.hits[one.layer][one.head] / found.n_tokens for one in found.heads], abs=1e-6)
    find(tiny_checkpoint, tmp_path / "again.json", "--batch-size", 4)
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(heads_file.read_text())


def test_drafts_from_heads_change_no_text(heads_file: Path, tiny_checkpoint: Path) -> None:
    [plain] = generated(tiny_checkpoint, *GENERATE, "--method", "autoregressive")
    for method, source in (("pld-plus-a+pld-plus-h", "pld-plus-a"), ("pld+pld-plus-a", "pld")):
        [line] = generated(tiny_checkpoint, *GENERATE, "--method", method, "--heads", heads_file, "--stages", 2)
        assert line["token_ids"] == plain["token_ids"]
        assert line["by_source"][source]["drafted"] > 0


def test_without_a_file_heads_are_found_once_and_cached(
    tiny_checkpoint: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "PROMPTS", [text[-200:] for text in heads.PROMPTS[:3]])
    command = ("generate", "--model", tiny_checkpoint, *GENERATE, "--json")
    method = ("--method", "pld+pld-plus-a")
    assert run_cli(*command, "--method", "pld-plus-h+pld").status == 0
    assert not own_cache.exists()  # only pld-plus-a reads heads
    first = run_cli(*command, *method)
    assert "finding induction heads" in first.err
    [cached] = (own_cache / "heads").iterdir()
    assert read_heads(cached, model_hash(tiny_checkpoint), 4, 4).pairs
    cached.write_text("{}")  # a truncated file is reported, and the heads are found again
    again = run_cli(*command, *method)
    assert again.document["token_ids"] == first.document["token_ids"]
    assert f"{cached} is not a heads file" in again.err
    with monkeypatch.context() as patch:
        patch.setattr(heads, "find", None)
        assert run_cli(*command, *method).status == 0
        assert served_speculators(ServeConfig(model=str(tiny_checkpoint), method="pld")).heads
    shutil.rmtree(own_cache.parent)
    served = served_speculators(ServeConfig(model=str(tiny_checkpoint), method="pld+pld-plus-a", stages=2))
    assert served.heads  # a server finds them before it starts
    assert len(list((own_cache / "heads").iterdir())) == 1
    shutil.rmtree(own_cache.parent)
    own_cache.parent.write_text("not a folder")
    unwritable = run_cli(*command, *method)
    assert (unwritable.status, "cannot be written" in unwritable.err) == (0, True)


def test_heads_of_another_model_are_refused_by_name(heads_file: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    other = shutil.copytree(tiny_checkpoint, tmp_path / "other")
    tensors = {name: tensor * 1.01 for name, tensor in load_file(other / "model.safetensors").items()}
    save_file(tensors, other / "model.safetensors", {"format": "pt"})  # a fine-tuned model: same names, same sizes
    for method in ("pld-plus-a", "pld"):
        ran = run_cli("generate", "--model", other, *GENERATE, "--method", method, "--heads", heads_file)
        assert (ran.status, ran.out) == (2, "")
        assert f"{heads_file} belongs to another model" in ran.err
    with pytest.raises(ConfigError, match="belongs to another model"):
        served_speculators(ServeConfig(model=str(other), heads=str(heads_file)))


def test_a_server_knows_heads_only_if_they_are_configured(heads_file: Path, tiny_checkpoint: Path) -> None:
    model = str(tiny_checkpoint)
    pool = SpeculatorPool(served_speculators(ServeConfig(model=model, method="pld")))
    with pytest.raises(UnknownMethodError, match="--heads FILE") as caught:
        pool.needs("pld-plus-a")
    assert caught.value.param == "method"
    assert pool.needs("pld-plus-h") == Needs(hidden_layer=1, hidden_dims=128)
    given = ServeConfig(model=model, method="pld", heads=str(heads_file), pld_plus={"draft_tokens": 9, "layer": 2})
    pool = SpeculatorPool(served_speculators(given))
    assert pool.needs("pld-plus-a").heads == read_heads(heads_file, model_hash(tiny_checkpoint), 4, 4).pairs
    assert pool.needs("pld-plus-h").hidden_layer == 2
    listed = ServeConfig(model=model, pld_plus={"heads": [[0, 1], [3, 3]]})
    assert SpeculatorPool(served_speculators(listed)).needs("pld-plus-a").heads == ((0, 1), (3, 3))


def test_a_server_refuses_a_layer_or_head_that_its_model_lacks(tiny_checkpoint: Path) -> None:
    settings: dict[str, Any]
    for settings, says in (
        ({"method": "pld-plus-h", "pld_plus": {"layer": 4}}, "hidden_layer is 4; .* 0 to 3"),
        ({"method": "pld+pld-plus-a", "pld_plus": {"heads": [[3, 4]]}}, r"heads contains \(3, 4\)"),
        ({"method": "pld-plus-a", "heads": "missing.json"}, "missing.json cannot be read"),
    ):
        with pytest.raises(ConfigError, match=says):
            check_model(ServeConfig(model=str(tiny_checkpoint), **settings), is_local=True)


def test_rows_that_were_read_once_are_used_from_then_on_unless_the_file_is_broken(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = load_spec(tiny_checkpoint)
    assert known_rows(tiny_checkpoint, spec) is None
    done = run_cli("vocabulary", "read", "--model", tiny_checkpoint, "--stages", 2)
    file = rows_file(tiny_checkpoint)
    assert done.status == 0
    assert f"{spec.vocab_size} tokens" in done.out
    rows = known_rows(tiny_checkpoint, spec)
    assert rows is not None
    assert rows.ids.shape == (spec.vocab_size, 16)
    served = served_speculators(ServeConfig(model=str(tiny_checkpoint)))
    assert served.vocabulary is not None
    assert (served.vocabulary.ids == rows.ids).all()
    file.write_bytes(b"half")
    assert known_rows(tiny_checkpoint, spec) is None
    assert str(file) in capsys.readouterr().err
