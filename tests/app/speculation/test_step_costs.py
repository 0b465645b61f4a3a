"""Step times for ``auto``: measured once per machine, model and way to run it; and the settings a server takes."""

from __future__ import annotations

import json
import platform
import shutil
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from app.cli import main, parser
from app.commands.serve import config_from
from app.composition.pipeline import router_options
from app.composition.speculation import speculator_options
from app.config.serve import ServeConfig
from app.demo.paths import DEMO_TARGET
from app.speculation import step_costs
from app.speculation.step_costs import costs_name, offline_costs
from engine.errors import ConfigError
from engine.scheduling.scheduler import SchedulerOptions
from engine.step_cost import StepCosts, costs_file, read_costs
from engine.target import step_timing
from engine.target.local import LocalTarget
from engine.target.options import TargetOptions
from engine.target.step_timing import GRID
from speculators.auto.config import AutoConfig
from speculators.mixing.combined import CombinationConfig
from speculators.ngrams.suffix import SuffixConfig
from speculators.peers.adapld import AdaPldConfig
from speculators.peers.goose import GooseConfig
from speculators.peers.stand import StandConfig
from speculators.prediction.config import PredictionConfig
from speculators.successors.config import SuccessorConfig
from speculators.successors.token_recycling import TokenRecyclingConfig

Spectra = Callable[..., dict[str, Any]]
PROMPT = ("--prompt", "Snow falls, snow falls, snow", "--max-new-tokens", 60)
WAY = {"dtype": None, "device": "cpu", "stages": 1, "threads": 1, "cache": 0.5}  # to run a model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; not the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    """The command sets the number of threads of the process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def spectra(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Spectra:
    monkeypatch.setattr(step_timing, "REPEATS", 1)  # what is measured is not looked at here

    """``spectra("auto", ...)``: generates with the tiny model; the JSON line."""

    def run(method: str, *flags: object, model: Path = tiny_checkpoint) -> dict[str, Any]:
        capsys.readouterr()
        arguments = ["generate", "--model", model, "--kv-gib", 0.02, "--json", "--method", method, *PROMPT, *flags]
        assert main([str(argument) for argument in arguments]) == 0
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    return run


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on nothing may be measured."""

    def refuse(target: LocalTarget) -> StepCosts:
        raise AssertionError("step times were measured")

    monkeypatch.setattr(step_costs, "measure", refuse)


def kept(cache: Path) -> list[Path]:
    return sorted((cache / "spectra-serve" / "step-costs").glob("*"))


@pytest.mark.parametrize("sampling", [(), ("--temperature", 0.8, "--seed", 5)], ids=["greedy", "seeded"])
def test_the_first_run_measures_and_every_text_is_the_plain_one(
    sampling: tuple[object, ...], spectra: Spectra, cache: Path
) -> None:
    plain = spectra("autoregressive", *sampling)
    assert kept(cache) == []
    for _ in range(2):  # measured, then read
        answer = spectra("auto", *sampling)
        assert answer["token_ids"] == plain["token_ids"]
        assert answer["drafted_tokens"] == sum(source["drafted"] for source in answer["by_source"].values())
        assert set(answer["by_source"]) <= {"suffix", "token-recycling", "pld"}
    (file,) = kept(cache)
    costs = read_costs(file)
    assert costs is not None
    assert list(costs.curves) == list(GRID)


def test_the_packaged_model_writes_the_same_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A second, whatever a step's rows: what is measured beside other work may speak against every draft.
    monkeypatch.setattr(step_costs, "read_costs", lambda file: StepCosts({1: ((1, 300), (1.0, 1.0))}))
    texts = []
    for method in ("autoregressive", "auto"):
        flags = ["--prompt", "Repeat:" + 8 * " red blue", "--max-new-tokens", "120", "--json"]
        assert main(["generate", "--method", method, *flags]) == 0
        line = json.loads(capsys.readouterr().out)
        texts.append(line["text"])
    assert texts[0] == texts[1]
    assert line["target_forwards"] < 0.7 * len(line["token_ids"])  # two words again and again


def test_a_second_start_measures_nothing(
    spectra: Spectra, request: pytest.FixtureRequest, cache: Path, tiny_checkpoint: Path
) -> None:
    spectra("auto")
    before = [file.read_bytes() for file in kept(cache)]
    request.getfixturevalue("unmeasured")
    spectra("auto")
    spectra("auto", "--temperature", 0.5, "--max-nodes", 5, "--batch-size", 3)
    assert [file.read_bytes() for file in kept(cache)] == before
    with pytest.raises(AssertionError, match="were measured"):
        spectra("auto", "--stages", 2)


@pytest.mark.parametrize("method", ["autoregressive", "pld", "suffix+token-recycling"])
def test_methods_that_do_not_weigh_cost_nothing(method: str, spectra: Spectra, unmeasured: None, cache: Path) -> None:
    spectra(method)
    assert kept(cache) == []


@pytest.mark.parametrize(
    ("methods", "wanted"),
    [(["pld", "auto"], True), (["pld+auto"], True), (["pld + auto"], True), (["pld", "suffix"], False)],
    ids=str,
)
def test_any_method_of_a_command_may_be_the_one(methods: list[str], wanted: bool, tiny_checkpoint: Path) -> None:
    options = TargetOptions(str(tiny_checkpoint), kv_bytes=4 << 20, max_model_len=128)
    target = LocalTarget.load(options, tiny_checkpoint)
    arguments = Namespace(
        methods=methods, dtype=None, device="cpu", stages=1, threads=1, kv_gib=0.004, quantization=None, numerics="fast"
    )
    costs = offline_costs(arguments, tiny_checkpoint, target)
    assert (costs is not None) == wanted
    assert target.n_sequences == 0


def test_a_broken_file_is_measured_anew_and_replaced(spectra: Spectra, cache: Path) -> None:
    plain = spectra("auto")
    (file,) = kept(cache)
    for content in ("", "{}", '{"1": [[1], [0.1, 0.2]]}', "[1, 2]"):
        file.write_text(content)
        assert read_costs(file) is None
    assert spectra("auto")["token_ids"] == plain["token_ids"]
    assert kept(cache) == [file]
    assert read_costs(file) is not None


def test_a_cache_that_cannot_be_written_only_costs_time(
    spectra: Spectra, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.write_text("a file where the folder would be")
    assert spectra("auto")["token_ids"] == spectra("autoregressive")["token_ids"]
    assert "step times were not kept" in caplog.text


def file_of(*way: Any, **more: Any) -> Path:
    """Where the step times of a way to run a model are kept here."""
    return costs_file(costs_name(*way, **more))


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "bfloat16"},
        {"device": "cuda"},
        {"device": "cuda:1"},
        {"stages": 2},
        {"threads": 4},
        {"cache": 4.0},
        {"place": "served"},
    ],
    ids=str,
)
def test_another_way_to_run_has_another_file(change: dict[str, Any], tiny_checkpoint: Path, cache: Path) -> None:
    plain = file_of(tiny_checkpoint, **WAY)
    assert plain == file_of(tiny_checkpoint, **WAY)
    assert plain.is_relative_to(cache)
    assert file_of(tiny_checkpoint, **(WAY | change)) != plain


def test_another_model_or_machine_has_another_file(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = file_of(tiny_checkpoint, **WAY)
    shutil.copytree(tiny_checkpoint, tmp_path / "copy")
    assert file_of(tmp_path / "copy", **WAY) == plain  # the same model, wherever it lies
    config = tmp_path / "copy" / "config.json"
    config.write_text(config.read_text().replace("}", " }", 1))
    assert file_of(tmp_path / "copy", **WAY) != plain
    assert file_of(DEMO_TARGET, **WAY) != plain
    monkeypatch.setattr(platform, "node", lambda: "elsewhere")
    assert file_of(tiny_checkpoint, **WAY) != plain


def test_a_server_tells_its_router_where_step_times_are_kept(tiny_checkpoint: Path, cache: Path) -> None:
    config = ServeConfig(model=str(tiny_checkpoint), name="tiny", stages=2, max_nodes=9)
    options = router_options(config)
    assert costs_file(options.cost_file).parent == cache / "spectra-serve" / "step-costs"
    assert (options.model, options.max_nodes, options.scheduler) == (
        "tiny",
        9,
        SchedulerOptions(64, 256, 2048, 512, 2, 0.1, True),
    )
    files = {options.cost_file}
    for change in ({"stages": 1}, {"kv_gib": 1.0}, {"threads": 2}, {"dtype": "bfloat16"}, {"model": "demo"}):
        files.add(router_options(config.model_copy(update=change)).cost_file)
    assert len(files) == 6
    offline = file_of(tiny_checkpoint, None, "cpu", 2, 1, 0.5)
    assert offline not in map(costs_file, files)  # without channels the same steps are shorter


# -- settings --------------------------------------------------------------------------------------------------------

SETTINGS: dict[str, tuple[dict[str, Any], object]] = {
    "auto": (
        {"margin": 0.1, "longest_pause": 8, "sources": ["pld"]},
        AutoConfig(sources=("pld",), longest_pause=8, margin=0.1),
    ),
    "successors": (
        {"top_k": 4, "text_orders": [1, 2], "shared": True},
        SuccessorConfig(top_k=4, text_orders=(1, 2), shared=True),
    ),
    "suffix": ({"mode": "paper", "max_draft": 9}, SuffixConfig(mode="paper", max_draft=9)),
    "adapld": ({"layer": 2, "least": 0.4}, AdaPldConfig(layer=2, least=0.4)),
    "prediction": ({"least": 0.1, "places": 3}, PredictionConfig(least=0.1, places=3)),
    "goose": ({"ngrams": [4, 2], "ratios": [0, 0.1, 1]}, GooseConfig(ngrams=(4, 2), ratios=(0.0, 0.1, 1.0))),
    "stand": ({"order": 2, "noise": "target"}, StandConfig(order=2, noise="target")),
    "token_recycling": ({"mode": "paper", "depth": 3}, TokenRecyclingConfig(mode="paper", depth=3)),
    "combination": (
        {"mode": "priority", "weights": {"pld": 2}, "limits": {"pld": 3}},
        CombinationConfig("priority", weights={"pld": 2.0}, limits={"pld": 3}),
    ),
}
WRONG = [
    ("auto", {"margin": 1}, "margin"),
    ("auto", {"longest_pause": 0}, "longest_pause"),
    ("auto", {"sources": ["auto"]}, "sources"),
    ("auto", {"margin": "much"}, "margin"),
    ("successors", {"top_k": 0}, "top_k"),
    ("successors", {"text_orders": [2, 1]}, "text_orders"),
    ("successors", {"adapt": 2}, "adapt"),
    ("suffix", {"mode": "fast"}, "mode"),
    ("suffix", {"min_probability": 0}, "min_probability"),
    ("adapld", {"branches": -1}, "branches"),
    ("prediction", {"least": 0}, "least"),
    ("prediction", {"places": 65}, "places"),
    ("goose", {"ngrams": [2, 4]}, "ngrams"),
    ("stand", {"noise": "white"}, "noise"),
    ("token_recycling", {"depth": 0}, "depth"),
    ("token_recycling", {"use_prompt": 3}, "use_prompt"),
    ("combination", {"probe_share": 2}, "probe_share"),
    ("combination", {"limits": {"pld": -1}}, "limits"),
    ("combination", {"mode": "best"}, "mode"),
]


def served(*flags: str) -> ServeConfig:
    """What ``spectra serve`` with these flags would run."""
    return config_from(parser().parse_args(["serve", *flags]))


def flag(section: str) -> str:
    return "--" + section.replace("_", "-")


@pytest.mark.parametrize("section", SETTINGS)
def test_settings_reach_their_method_by_key_and_by_flag(section: str) -> None:
    given, wanted = SETTINGS[section]
    plain = ("--retrieval", "none")  # the built-in texts are no source of auto
    assert (
        getattr(speculator_options(ServeConfig.model_validate({section: given, "retrieval": "none"})), section)
        == wanted
    )
    assert getattr(speculator_options(served(flag(section), json.dumps(given), *plain)), section) == wanted
    assert getattr(speculator_options(served(*plain)), section) == type(wanted)()


@pytest.mark.parametrize("section", SETTINGS)
def test_settings_that_do_not_exist_are_refused_by_name(section: str) -> None:
    says = f"{section} has no setting 'frobnicate'; it has "
    with pytest.raises(ValidationError, match=says):
        ServeConfig.model_validate({section: {"frobnicate": 1}})
    with pytest.raises(ConfigError, match=says.replace(section, flag(section))):
        served(flag(section), '{"frobnicate": 1}')


@pytest.mark.parametrize(("old", "new"), [(0.1, "0.9"), (1, "0"), ("x", "1 - tau_refine")])
def test_a_setting_that_was_replaced_names_its_successor_and_the_value_to_give(old: float | str, new: str) -> None:
    says = f" has no setting 'tau_refine' any more; explore, .* explore {new} is what tau_refine {old} was"
    with pytest.raises(ValidationError, match=f"spectra_core{says}"):
        ServeConfig.model_validate({"spectra_core": {"tau_refine": old}})
    with pytest.raises(ConfigError, match=f"--spectra-core{says}"):
        served("--spectra-core", json.dumps({"tau_refine": old}))


@pytest.mark.parametrize(("section", "given", "field"), WRONG, ids=str)
def test_settings_out_of_range_name_their_field(section: str, given: dict[str, Any], field: str) -> None:
    name = section.replace("_", "[-_]")
    with pytest.raises((ConfigError, ValidationError), match=f"{name}: .*{field}"):
        ServeConfig.model_validate({section: given})
    with pytest.raises(ConfigError, match=f"{name}: .*{field}"):
        served(flag(section), json.dumps(given))


@pytest.mark.parametrize("text", ["{", "margin=0.1", "[1]", "3"])
def test_what_is_no_object_is_refused_with_the_flag(text: str) -> None:
    with pytest.raises(ConfigError, match="--auto"):
        served("--auto", text)
