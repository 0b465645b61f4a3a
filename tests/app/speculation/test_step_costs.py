"""Step times for ``auto``: measured once per machine, model and way to run it."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.composition.pipeline import router_options
from app.config.serve import ServeConfig
from app.speculation import step_costs
from app.speculation.step_costs import costs_name
from engine.scheduling.scheduler import SchedulerOptions
from engine.step_cost import StepCosts, costs_file, read_costs
from engine.target_model import step_timing
from engine.target_model.local import LocalTarget
from engine.target_model.step_timing import GRID
from tests.support.spectra_command import generated
from tests.support.tiny_models import saved_checkpoint

FIXED = StepCosts({1: ((1, 300), (1.0, 1.0))})  # a second per step, whatever its rows
WAY = {"device": "cpu", "layout": "1x1", "cache": 0.5}

Generate = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def generate(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Generate:
    """``generate("auto", ...)``: the JSON line."""
    monkeypatch.setattr(step_timing, "REPEATS", 1)  # these tests do not read the times
    prompt = ("--prompt", "Snow falls, snow falls, snow", "--max-tokens", 40, "--kv-gib", 0.02)
    return lambda method, *flags: generated(tiny_checkpoint, *prompt, "--method", method, *flags)[0]


def kept(cache: Path) -> list[Path]:
    return sorted((cache / "step-costs").glob("*"))


def test_the_first_run_of_auto_measures_and_later_runs_read_the_file(
    generate: Generate, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = generate("autoregressive")
    generate("pld")
    assert kept(own_cache) == []
    answers = [generate("auto")]
    (file,) = kept(own_cache)
    before = file.read_bytes()
    costs = read_costs(file)
    assert costs is not None
    assert list(costs.curves) == list(GRID)

    def refuse(_: LocalTarget) -> StepCosts:
        raise AssertionError("step times were measured")

    monkeypatch.setattr(step_costs, "measure", refuse)
    answers += [generate("auto"), generate("auto", "--max-nodes", 5, "--batch-size", 3)]
    assert kept(own_cache) == [file]
    assert file.read_bytes() == before
    for answer in answers:
        assert answer["token_ids"] == plain["token_ids"]
    for needs_costs in (("auto", "--stages", 2), ("auto", "--dtype", "bfloat16"), (" auto ", "--stages", 2)):
        with pytest.raises(AssertionError, match="were measured"):
            generate(*needs_costs)


def test_auto_writes_a_repetitive_text_in_fewer_forwards(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_costs, "read_costs", lambda _: FIXED)
    flags = ("--prompt", "Repeat:" + 8 * " red blue", "--max-tokens", 60)
    [plain] = generated(tiny_checkpoint, *flags, "--method", "autoregressive")
    [line] = generated(tiny_checkpoint, *flags, "--method", "auto")
    assert line["text"] == plain["text"]
    assert line["target_forwards"] < 0.8 * len(line["token_ids"])


def test_a_broken_file_is_replaced_and_an_unwritable_cache_costs_only_time(
    generate: Generate, own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = generate("auto")
    (file,) = kept(own_cache)
    for content in ("", "{}", '{"1": [[1], [0.1, 0.2]]}', "[1, 2]"):
        file.write_text(content)
        assert read_costs(file) is None
    assert generate("auto")["token_ids"] == plain["token_ids"]
    assert kept(own_cache) == [file]
    assert read_costs(file) is not None
    shutil.rmtree(own_cache.parent)
    own_cache.parent.write_text("a file where the folder would be")
    assert generate("auto")["token_ids"] == plain["token_ids"]
    assert "step times were not saved" in caplog.text


def file_of(*model: Any, **how: Any) -> Path:
    return costs_file(costs_name(*model, **how))


def test_every_way_to_run_every_model_and_every_machine_has_its_own_file(
    tiny_checkpoint: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = file_of(tiny_checkpoint, **WAY)
    assert plain.is_relative_to(own_cache)
    copy = shutil.copytree(tiny_checkpoint, tmp_path / "copy")
    assert file_of(copy, **WAY) == file_of(tiny_checkpoint, **WAY) == plain  # the same model in any folder
    changes = {"device": "cuda", "layout": "2x1", "cache": 4.0, "place": "served"}
    files = [file_of(tiny_checkpoint, **(WAY | {name: value})) for name, value in changes.items()]
    (copy / "config.json").write_text((copy / "config.json").read_text().replace("}", " }", 1))
    files += [file_of(copy, **WAY), file_of(saved_checkpoint(400), **WAY)]
    monkeypatch.setattr(platform, "node", lambda: "elsewhere")
    files.append(file_of(tiny_checkpoint, **WAY))
    assert len({plain, *files}) == 1 + len(files)


def test_the_router_of_a_server_gets_the_place_of_step_times(tiny_checkpoint: Path, own_cache: Path) -> None:
    config = ServeConfig(model=str(tiny_checkpoint), name="tiny", stages=2, max_nodes=9)
    options = router_options(config)
    assert costs_file(options.cost_file).parent == own_cache / "step-costs"
    assert (options.model, options.max_nodes) == ("tiny", 9)
    assert options.scheduler == SchedulerOptions(64, 256, 2048, 512, 2, 0.1, True)
    files = {options.cost_file}
    changes = ({"stages": 1}, {"tensor_parallel": 2}, {"kv_gib": 1.0}, {"threads": 2})
    for change in (*changes, {"model": str(saved_checkpoint(400))}):
        files.add(router_options(config.model_copy(update=change)).cost_file)
    assert len(files) == 6
    offline = file_of(tiny_checkpoint, "cpu", "2x1", 0.5)
    assert offline not in map(costs_file, files)  # steps without channels between processes are shorter
