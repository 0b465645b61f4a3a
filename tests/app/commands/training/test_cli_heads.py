"""``spectra heads find``, and where the other commands take the heads of ``pld-plus-a`` from."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from app.cli import main
from app.commands.training.heads import draw
from app.composition.speculation import served_speculators
from app.config.serve import ServeConfig
from app.serving.preflight import check_model
from app.speculation import heads
from app.speculation.heads import names_method
from engine.errors import ConfigError, UnknownMethodError
from engine.kept_files import cache_folder
from engine.model.identity import model_hash
from engine.protocol import Needs
from speculators.pld_plus.induction_heads import read_heads
from speculators.pool import SpeculatorPool

PROMPT = "Snow falls on the quiet town. Snow falls on the quiet river. Snow falls"
GENERATE = ("--prompt", PROMPT, "--raw", "--max-new-tokens", 40, "--temperature", 0.7, "--seed", 3)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No test touches the user's cache; the command sets the number of threads of the process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = torch.get_num_threads()
    yield tmp_path / "cache" / "spectra-serve"
    torch.set_num_threads(before)


@pytest.fixture
def spectra(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """``spectra("generate", "--prompt", "hi")``: status, stdout, stderr."""

    def run(*words: object, model: Path = tiny_checkpoint) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main([str(word) for word in (*words, "--model", model)])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


@pytest.fixture
def few_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three built-in prompts, cut short, are enough for a tiny model."""
    monkeypatch.setattr(heads, "PROMPTS", [text[-200:] for text in heads.PROMPTS[:3]])


@pytest.fixture
def heads_file(tmp_path: Path, spectra: Run) -> Path:
    """A file found by the command on a prompt file."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"turns": [PROMPT[i:], "unused"]}) for i in range(5)))
    out = tmp_path / "found" / "heads.json"
    flags = ("--prompts", prompts, "--limit", 4, "--max-new-tokens", 30, "--keep", 5, "--stages", 2)
    status, printed, bar = spectra("heads", "find", "--out", out, *flags)
    assert status == 0
    assert f"heads: {out}" in printed
    assert "hits per token" in printed
    assert "4/4" in bar
    return out


def test_the_file_holds_the_heads_of_this_model_best_first(heads_file: Path, tiny_checkpoint: Path) -> None:
    found = read_heads(heads_file, model_hash(tiny_checkpoint), 4, 4)
    rates = [one.rate for one in found.heads]
    assert rates == sorted(rates, reverse=True)
    assert 0 < len(found.heads) <= 5
    assert 10 < found.n_tokens <= 120
    counted = [found.hits[one.layer][one.head] / found.n_tokens for one in found.heads]
    assert rates == pytest.approx(counted, abs=1e-6)
    assert heads_file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_is_no_picture_and_no_error(
    heads_file: Path, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    found = read_heads(heads_file, model_hash(tiny_checkpoint), 4, 4)
    assert not draw(found, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_the_batch_size_changes_nothing(heads_file: Path, tmp_path: Path, spectra: Run) -> None:
    flags = ("--prompts", tmp_path / "prompts.jsonl", "--limit", 4, "--max-new-tokens", 30, "--keep", 5)
    again = tmp_path / "again.json"
    assert spectra("heads", "find", "--out", again, *flags, "--batch-size", 4)[0] == 0
    assert json.loads(again.read_text()) == json.loads(heads_file.read_text())


@pytest.mark.parametrize("method", ["pld-plus-a", "pld-plus-h", "pld-plus-a+pld-plus-h", "pld+pld-plus-a"])
def test_generate_with_heads_writes_what_it_writes_without(method: str, heads_file: Path, spectra: Run) -> None:
    lines = []
    for flags in (("--method", "autoregressive"), ("--method", method, "--heads", heads_file, "--stages", 2)):
        status, printed, _ = spectra("generate", *GENERATE, "--json", *flags)
        assert status == 0
        lines.append(json.loads(printed))
    assert lines[0]["token_ids"] == lines[1]["token_ids"]
    assert set(lines[1]["by_source"]) <= set(method.split("+"))
    assert lines[1]["by_source"][method.split("+")[0]]["drafted"] > 0


@pytest.mark.usefixtures("few_prompts")
def test_without_a_file_heads_are_found_once_and_cached(
    spectra: Run, tiny_checkpoint: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("generate", *GENERATE, "--json", "--method", "pld+pld-plus-a")
    status, first, bar = spectra(*flags)
    assert status == 0
    assert "finding induction heads" in bar
    [cached] = (own_cache / "heads").iterdir()
    assert read_heads(cached, model_hash(tiny_checkpoint), 4, 4).pairs
    cached.write_text("{}")  # half a disk: found again, and said
    status, again, said = spectra(*flags)
    assert (status, json.loads(again)["token_ids"]) == (0, json.loads(first)["token_ids"])
    assert f"{cached} is not a heads file" in said
    monkeypatch.setattr(heads, "find", None)
    assert spectra(*flags)[0] == 0
    assert served_speculators(ServeConfig(model=str(tiny_checkpoint), method="pld")).pld_plus.heads


def test_methods_that_need_no_heads_look_for_none(spectra: Run, own_cache: Path) -> None:
    assert spectra("generate", *GENERATE, "--method", "pld-plus-h+pld")[0] == 0
    assert not own_cache.exists()
    assert names_method(["pld", "spectra-core + pld-plus-a"])
    assert not names_method("pld-plus-h+pld")


@pytest.mark.usefixtures("few_prompts")
def test_a_cache_that_cannot_be_written_costs_time_only(spectra: Run, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    status, _, said = spectra("generate", *GENERATE, "--method", "pld-plus-a")
    assert status == 0
    assert "cannot be written" in said


def test_another_models_heads_are_refused_by_name(
    heads_file: Path, spectra: Run, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_checkpoint, other)
    tensors = load_file(other / "model.safetensors")
    tensors["model.norm.weight"] += 0.5
    for name in tensors:
        tensors[name] = tensors[name] * 1.01  # same names, same sizes: a fine-tuned model
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    assert model_hash(other) != model_hash(tiny_checkpoint)
    for method in ("pld-plus-a", "pld"):
        status, printed, said = spectra("generate", *GENERATE, "--method", method, "--heads", heads_file, model=other)
        assert (status, printed) == (2, "")
        assert f"{heads_file} belongs to another model" in said
    with pytest.raises(ConfigError, match="belongs to another model"):
        served_speculators(ServeConfig(model=str(other), heads=str(heads_file)))


def test_a_server_knows_heads_only_if_it_was_told_or_needs_them(heads_file: Path, tiny_checkpoint: Path) -> None:
    model = str(tiny_checkpoint)
    pool = SpeculatorPool(served_speculators(ServeConfig(model=model, method="pld")))
    with pytest.raises(UnknownMethodError, match="--heads FILE") as caught:
        pool.needs("pld-plus-a")
    assert caught.value.param == "method"
    assert pool.needs("pld-plus-h") == Needs(hidden_layer=1, hidden_dims=128)
    told = ServeConfig(model=model, method="pld", heads=str(heads_file), pld_plus={"draft_tokens": 9, "layer": 2})
    pool = SpeculatorPool(served_speculators(told))
    assert pool.needs("pld-plus-a").heads == read_heads(heads_file, model_hash(tiny_checkpoint), 4, 4).pairs
    assert pool.needs("pld-plus-h").hidden_layer == 2
    written = ServeConfig(model=model, pld_plus={"heads": [[0, 1], [3, 3]]})
    assert SpeculatorPool(served_speculators(written)).needs("pld-plus-a").heads == ((0, 1), (3, 3))


@pytest.mark.usefixtures("few_prompts")
def test_a_server_whose_method_needs_heads_finds_them_before_it_starts(tiny_checkpoint: Path, own_cache: Path) -> None:
    config = ServeConfig(model=str(tiny_checkpoint), method="pld+pld-plus-a", stages=2)
    assert served_speculators(config).pld_plus.heads == served_speculators(config).pld_plus.heads != ()
    assert len(list((own_cache / "heads").iterdir())) == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": "pld-plus-h", "pld_plus": {"layer": 4}}, "hidden_layer is 4; .* 0 to 3"),
        ({"method": "pld+pld-plus-a", "pld_plus": {"heads": [[3, 4]]}}, r"heads contains \(3, 4\)"),
        ({"method": "pld-plus-a", "heads": "missing.json"}, "missing.json cannot be read"),
    ],
)
def test_a_server_refuses_a_layer_or_head_its_model_has_not(
    settings: dict[str, Any], said: str, tiny_checkpoint: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        check_model(ServeConfig(model=str(tiny_checkpoint), **settings), is_local=True)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--keep", 0), "--keep is 0"),
        (("--limit", 0), "--limit is 0"),
        (("--max-new-tokens", 0), "--max-new-tokens is 0"),
        (("--max-new-tokens", 5000), "no room for 5000"),
        (("--stages", 9), "--stages is 9"),
        (("--prompts", "missing.jsonl"), "missing.jsonl"),
        (("--max-new-tokens", 1), "no induction head was found in 1 prompts"),
    ],
)
def test_wrong_flags_are_named(flags: tuple[Any, ...], said: str, spectra: Run, tmp_path: Path) -> None:
    if said.startswith("no induction"):
        prompts = tmp_path / "one.jsonl"
        prompts.write_text(json.dumps({"turns": [""]}))
        flags = (*flags, "--prompts", prompts)
    status, printed, line = spectra("heads", "find", "--out", tmp_path / "heads.json", *flags)
    assert (status, printed) == (2, "")
    assert said in line
    assert not (tmp_path / "heads.json").exists()


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/spectra-serve")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == Path.home() / ".cache" / "spectra-serve"
