"""Numerics of a target: an unknown or impossible choice is refused before kernels are loaded."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from engine.errors import ConfigError
from engine.model.loader import load_shard
from engine.model.ranges import split_layers
from engine.target.loading import describe_target, load_parts
from engine.target.local import LocalTarget
from engine.target.numerics import check_triton, executors_of, is_exact, multiply_small_weights
from engine.target.options import TargetOptions
from tests.support.tiny_models import saved_model, tiny_shards


def test_fast_numerics_and_the_oracle_have_no_executor() -> None:
    options = TargetOptions("model")
    assert executors_of(options, tiny_shards("llama", 2)) == [None, None]
    assert executors_of(replace(options, numerics="exact", reference=True), tiny_shards("llama", 2)) == [None, None]


@pytest.mark.cluster
def test_a_cpu_loads_no_kernels() -> None:
    script = (
        "import sys, engine.target.local; print(any(name.startswith('engine.cuda.kernels') for name in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_exact_kernels_are_refused_on_a_cpu_and_unknown_numerics_anywhere() -> None:
    path = saved_model("llama")
    for numerics, message in (
        ("exact", "numerics is exact, but device is cpu"),
        ("odd", "numerics is 'odd'; it must be"),
    ):
        options = TargetOptions(str(path), kv_bytes=1 << 20, numerics=numerics)
        for one in (options, replace(options, stages=2, split="measured")):
            with pytest.raises(ConfigError, match=message):
                LocalTarget.load(one, path)
        with pytest.raises(ConfigError, match=message):  # before weights are read
            load_parts(options, path / "nothing here", split_layers(4, 1), describe_target(options, path))
    plain = TargetOptions(str(path), kv_bytes=1 << 20)
    exact = describe_target(replace(plain, numerics="exact"), path)
    assert describe_target(plain, path).identity != exact.identity, "requests resume on the same numerics only"


def test_gpus_before_hopper_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    options = TargetOptions("model", device="cuda:1", numerics="exact")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert is_exact(options)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    with pytest.raises(ConfigError, match=r"capability 9\.0 \(H100\) or higher; cuda:1 has 8\.9"):
        is_exact(options)


def test_weights_of_one_byte_are_multiplied_by_a_kernel_on_hopper_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = split_layers(4, 1)[0]
    shard = load_shard(
        saved_model("llama"), whole, dtype=torch.float32, device=torch.device("cpu"), n_positions=8, quantization="fp8"
    )
    down = shard.layers[0].mlp.down_proj
    for device, capability, runs in (("cpu", (9, 0), False), ("cuda", (8, 9), False), ("cuda", (9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        multiply_small_weights(device, [shard])
        assert (down.product is not None) is runs
    assert [one.getMessage() for one in caplog.records if "converted at every use" in one.getMessage()] == [
        "weights of one byte are converted at every use, which is slow: our kernels are made for "
        "GPUs of compute capability 9.0 (H100) or higher; cuda has 8.9"
    ]


def test_a_missing_compiler_or_header_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ConfigError, match=r"a C compiler \(gcc or clang in PATH, or CC\)"):
        check_triton()
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": "/nowhere"})
    with pytest.raises(ConfigError, match=r"missing: Python's headers"):
        check_triton()
