"""The folder for a GGUF file is written once, by one process, and whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.model.gguf import folder as folders
from engine.model.gguf.header import read_gguf_header
from engine.model.identity import model_hash
from engine.model.resolve import pinned, resolve
from tests.support.gguf_files import write_gguf


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "model.gguf", "llama", "Q4_0")
    return tmp_path / "model.gguf"


def test_a_file_is_converted_once(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = resolve(str(file))
    first = capsys.readouterr().err
    assert first.startswith(f"Converting {file} into {folder} (once) ...")
    assert resolve(str(file), weights=()) == folder
    assert capsys.readouterr().err == ""
    assert {path.name for path in folder.iterdir()} == {
        *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
        *("chat_template.jinja", "model.safetensors", "gguf.json"),
    }
    assert pinned(str(file)) == str(file)
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, f"{folder.name}.lock"}


def test_the_folder_follows_from_what_is_in_the_file_and_not_from_its_place(file: Path, tmp_path: Path) -> None:
    folder = resolve(str(file))
    copied = shutil.copy(file, tmp_path / "copied.gguf")
    assert resolve(str(copied)) == folder
    info, raw = read_gguf_header(file).tensors["blk.1.ffn_up.weight"], bytearray(file.read_bytes())
    raw[info.first + info.n_bytes // 2] ^= 1
    file.write_bytes(raw)
    assert resolve(str(file)) != folder
    assert model_hash(resolve(str(file))) != model_hash(folder)


@pytest.mark.parametrize("damage", ["a missing file", "a short file", "no gguf.json", "a damaged gguf.json"])
def test_a_damaged_folder_is_written_anew(damage: str, file: Path) -> None:
    folder = resolve(str(file))
    whole = model_hash(folder)
    if damage == "a missing file":
        (folder / "tokenizer.json").unlink()
    elif damage == "a short file":
        os.truncate(folder / "model.safetensors", 1000)
    elif damage == "no gguf.json":
        (folder / "gguf.json").unlink()
    else:
        (folder / "gguf.json").write_text("{}")
    assert resolve(str(file)) == folder
    assert model_hash(folder) == whole
    assert (folder / "tokenizer.json").is_file()


def test_what_a_stopped_process_left_is_removed(file: Path) -> None:
    folder = resolve(str(file))
    shutil.rmtree(folder)
    left = folder.with_name(f".{folder.name}.1")
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    resolve(str(file))
    assert not left.exists()


def test_a_folder_that_failed_to_be_written_does_not_stay(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders, "_write_weights", full)
    with pytest.raises(ConfigError, match=r"model\.gguf cannot be converted.*No space left.*XDG_CACHE_HOME.*--model"):
        resolve(str(file))
    assert not [*file.parent.rglob("config.json")]


def test_a_cache_that_cannot_be_written_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file.parent / "taken").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file.parent / "taken"))
    with pytest.raises(ConfigError, match=r"taken/spectra-serve/gguf/\S+ cannot be written: Not a directory"):
        resolve(str(file))


def test_threads_that_convert_at_once_get_one_folder(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(resolve(str(file)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 4
    assert capsys.readouterr().err.count("Converting ") == 1


CODE = "import sys; from engine.model.resolve import resolve; print(resolve(sys.argv[1]))"
LIGHT = "; assert not {'torch', 'transformers'} & set(sys.modules)"


@pytest.mark.cluster
def test_processes_that_convert_at_once_get_one_folder_and_load_no_torch(file: Path) -> None:
    command = [sys.executable, "-c", CODE + LIGHT, str(file)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    done = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], done
    assert len({out for out, _ in done}) == 1
    assert sum(errors.count("Converting ") for _, errors in done) == 1
    assert Path(done[0][0].strip()) == resolve(str(file))
