"""Numerics of a target: resolved before weights are read, from the GPU, its tools and the self-test."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine.drafter.serving.forwards import ModuleForwards
from engine.errors import ConfigError
from engine.model.loader import load_config
from engine.model.ranges import split_layers
from engine.target_model import numerics
from engine.target_model.loading import describe_target, load_stage
from engine.target_model.local import LocalTarget
from engine.target_model.numerics import (
    adopt,
    drafter_forwards,
    executors_of,
    layers_to_test,
    missing_tools,
    weakest,
    with_numerics,
)
from engine.target_model.options import EXACT, FAST, LAYERS, Resolution, TargetOptions
from tests.support.tiny_models import saved_model, tiny_shards

RIGHT, WRONG_ORDER, WRONG = "right", "wrong order", "wrong"  # what the self-test finds
HOPPER, AMPERE, TURING = (9, 0), (8, 0), (7, 5)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> GPU:
    return GPU(monkeypatch)


class GPU:
    """What ``resolve`` finds."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.tests: list[bool] = []  # arguments of the self-test
        self.row_tile: int | None = None

    def has(self, capability: tuple[int, int], tools: bool = True, kernels: str = RIGHT) -> None:
        self._patch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        self._patch.setattr(numerics, "missing_tools", lambda: "" if tools else "there is no compiler")

        def test(options: object, config: object, is_exact: bool) -> object:
            self.tests.append(is_exact)
            order = "rows differ" if is_exact and kernels == WRONG_ORDER else ""
            fault = "attention differs" if kernels == WRONG else ""
            return SimpleNamespace(kernel_fault=fault, order_fault=order, row_tile=self.row_tile, seconds=1.9)

        self._patch.setattr(numerics, "_test", test)


def resolved(requested: str, path: Path | None = None, device: str = "cuda:1", **more: object) -> Resolution:
    options = TargetOptions("model", device=device, numerics=requested, **more)  # type: ignore[arg-type]
    found = with_numerics(options, path or saved_model("llama"))
    assert with_numerics(found, Path("nowhere")) is found, "numerics are resolved once"
    assert found.resolution is not None
    assert found.has_executor is (found.resolution.numerics != LAYERS)
    return found.resolution


@pytest.mark.parametrize(
    ("capability", "tools", "kernels", "requested", "expected", "says"),
    [
        (HOPPER, True, RIGHT, "auto", EXACT, "exact (self-test passed in 1.9 s)"),
        (HOPPER, True, RIGHT, "exact", EXACT, "exact (self-test passed in 1.9 s)"),
        (HOPPER, True, RIGHT, "fast", FAST, "fast (self-test passed in 1.9 s)"),
        (HOPPER, True, WRONG_ORDER, "auto", FAST, "fast, because the self-test failed: rows differ"),
        (HOPPER, True, WRONG_ORDER, "fast", FAST, "fast (self-test passed in 1.9 s)"),
        (HOPPER, True, WRONG, "auto", LAYERS, "which are slow, because the self-test failed: attention differs"),
        (HOPPER, False, RIGHT, "fast", LAYERS, "which are slow, because there is no compiler"),
        (
            AMPERE,
            True,
            RIGHT,
            "auto",
            FAST,
            "fast, because cuda:1 has compute capability 8.0; it must be 9.0 or higher",
        ),
        (AMPERE, True, WRONG, "fast", LAYERS, "which are slow, because the self-test failed: attention differs"),
        (AMPERE, False, RIGHT, "auto", LAYERS, "which are slow, because there is no compiler"),
        (TURING, True, RIGHT, "fast", LAYERS, "because cuda:1 has compute capability 7.5; it must be 8.0 or higher"),
        (TURING, True, RIGHT, "auto", LAYERS, "because cuda:1 has compute capability 7.5; it must be 8.0 or higher"),
    ],
)
def test_the_best_numerics_that_can_run_are_chosen_and_logged(
    capability: tuple[int, int],
    tools: bool,
    kernels: str,
    requested: str,
    expected: str,
    says: str,
    gpu: GPU,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "engine.target_model.numerics")
    gpu.has(capability, tools, kernels)
    found = resolved(requested)
    assert found.numerics == expected
    [record] = caplog.records
    assert record.levelname == ("WARNING" if expected == LAYERS else "INFO")
    assert record.getMessage().startswith("numerics: ")
    assert record.getMessage().endswith(says)
    assert gpu.tests == ([requested != FAST and capability >= HOPPER] if tools and capability > TURING else [])


@pytest.mark.parametrize(
    ("capability", "tools", "kernels", "says"),
    [
        (AMPERE, True, RIGHT, "cuda:1 has compute capability 8.0; it must be 9.0 or higher"),
        (HOPPER, False, RIGHT, "there is no compiler"),
        (HOPPER, True, WRONG, "the self-test failed: attention differs"),
        (HOPPER, True, WRONG_ORDER, "the self-test failed: rows differ"),
    ],
)
def test_exact_is_refused_where_it_cannot_run(
    capability: tuple[int, int], tools: bool, kernels: str, says: str, gpu: GPU
) -> None:
    gpu.has(capability, tools, kernels)
    with pytest.raises(ConfigError, match=f"numerics is exact, but {says}; with auto"):
        resolved(EXACT)


def test_a_fixed_row_tile_is_logged(gpu: GPU, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "engine.target_model.numerics")
    gpu.has(HOPPER)
    gpu.row_tile = 64
    assert resolved("auto").row_tile == 64
    assert "exact (self-test passed in 1.9 s; products take 64 rows at once, whatever the step)" in caplog.text


def test_layers_that_convert_weights_of_one_byte_say_so(gpu: GPU, caplog: pytest.LogCaptureFixture) -> None:
    gpu.has(TURING)
    resolved("auto", quantization="fp8")
    assert caplog.messages[0].endswith("; weights of one byte are converted at every use")


def test_layers_run_on_a_cpu_and_on_request_without_a_log(gpu: GPU, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "engine.target_model.numerics")
    gpu.has(HOPPER)
    found = [resolved("auto", device="cpu"), resolved("fast", device="cpu")]
    found.append(resolved("layers"))
    assert not gpu.tests
    assert {one.numerics for one in found} == {LAYERS}
    options = TargetOptions("model", resolution=found[0])
    assert executors_of(options, tiny_shards("llama", 2)) == [None, None]
    assert not caplog.records


@pytest.mark.cluster
def test_a_cpu_loads_no_kernels() -> None:
    is_loaded = "any(name.startswith('engine.cuda.kernels') for name in sys.modules)"
    script = f"import sys, engine.target_model.local; print({is_loaded})"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ("exact", "numerics is exact, but device is cpu"),
        ("odd", "numerics is 'odd'; it must be auto, exact, fast or layers"),
    ],
)
def test_impossible_and_unknown_numerics_are_refused_before_weights_are_read(requested: str, message: str) -> None:
    path = saved_model("llama")
    options = TargetOptions(str(path), kv_bytes=1 << 20, numerics=requested)
    for one in (options, replace(options, stages=2, split="measured")):
        with pytest.raises(ConfigError, match=message):
            LocalTarget.load(one, path)
    info = describe_target(options, path)
    with pytest.raises(ConfigError, match=message):
        load_stage(options, path / "nothing here", split_layers(4, 1)[0], info)


def test_requests_resume_on_the_same_numerics_only() -> None:
    path = saved_model("llama")
    options = TargetOptions(str(path), kv_bytes=1 << 20)
    numbers = [
        describe_target(replace(options, resolution=one), path).identity.numbers
        for one in (None, Resolution(LAYERS), Resolution(FAST), Resolution(EXACT))
    ]
    assert numbers == ["float32", "float32", "float32+fast", "float32+exact"]


def test_a_pipeline_runs_the_weakest_numerics_of_its_stages() -> None:
    exact, fast, layers = Resolution(EXACT, row_tile=64), Resolution(FAST, "it is old"), Resolution(LAYERS)
    assert weakest([exact, exact]) == EXACT
    assert weakest([exact, fast, exact]) == FAST
    assert weakest([fast, layers, exact]) == LAYERS
    options = TargetOptions("model", device="cuda", resolution=exact)
    assert adopt(options, EXACT).resolution == exact
    assert adopt(options, FAST).resolution == replace(exact, numerics=FAST)
    assert not adopt(options, LAYERS).has_executor
    with pytest.raises(ConfigError, match=r"began with numerics exact, but here they are fast, because it is old"):
        adopt(replace(options, resolution=fast), EXACT)


def test_a_missing_compiler_or_header_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert "a C compiler (gcc or clang in PATH, or CC)" in missing_tools()
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": "/nowhere"})
    assert missing_tools().endswith("lack Python's headers (python3-dev)")


@pytest.mark.parametrize(("family", "n_kinds"), [("gemma3", 2), ("llama", 1)])
def test_a_layer_of_each_type_is_tested_in_its_own_sizes(
    family: str, n_kinds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numerics, "TEST_VOCABULARY", 50)
    path = saved_model(family)
    config = load_config(path)
    models = [*layers_to_test(TargetOptions(str(path)), config)]
    assert len(models) == n_kinds
    for model in models:
        [layer] = model.model.layers
        assert layer.mlp.down_proj.weight.shape == (config.hidden_size, config.intermediate_size)
        assert model.lm_head.weight.shape == (50, config.hidden_size)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("resolution", "products"),
    [
        (Resolution(EXACT), {"by_library": False, "row_tile": None}),
        (Resolution(EXACT, row_tile=64), {"by_library": False, "row_tile": 64}),
        (Resolution(FAST, row_tile=64), {"by_library": True, "row_tile": None}),
    ],
)
def test_executors_multiply_as_resolved_and_a_trained_drafter_runs_by_graphs(
    resolution: Resolution, products: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.cuda.drafter import KernelForwards
    from engine.cuda.products import Products

    monkeypatch.setattr("engine.cuda.executor.Executor", lambda shard, products, taps: products)
    options = TargetOptions("model", device="cuda", resolution=resolution)
    for made in executors_of(options, tiny_shards("llama", 2)):
        assert made == Products(**products)
    assert drafter_forwards(options) is KernelForwards
    assert drafter_forwards(replace(options, resolution=Resolution(LAYERS))) is ModuleForwards
