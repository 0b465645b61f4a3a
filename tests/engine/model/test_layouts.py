"""How each quantised format stores its numbers, by literal words, and which formats are refused by name."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.model.checkpoint_files import CONFIG
from engine.model.loader import load_config
from engine.model.matrices.layout import read_layout
from engine.model.matrices.stored import to_weights
from tests.support.quantized_checkpoints import HF_QUANT_CONFIG
from tests.support.tiny_models import saved_model

ASCENDING = 0x76543210  # the lowest four bits are 0, the highest 7
EIGHT = torch.arange(8.0)


def words(*values: int) -> Tensor:
    """int32 ``[1, n]`` of the same bits."""
    return torch.tensor([[value - (1 << 32) if value >> 31 else value for value in values]], dtype=torch.int32)


def weights_of(config: Mapping[str, Any], tensors: Mapping[str, Tensor], n_out: int, n_in: int) -> Tensor:
    layout = read_layout(config)
    assert layout is not None
    return to_weights(tensors, layout, n_out, n_in, torch.float32)


def gptq(**values: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": False, "desc_act": False} | values


def compressed(**weights: Any) -> dict[str, Any]:
    numbers = {"num_bits": 4, "type": "int", "strategy": "channel", "symmetric": True} | weights
    groups = {"group_0": {"targets": ["Linear"], "weights": numbers}}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}


@pytest.mark.parametrize(
    ("version", "zero"),
    [({}, 8), ({"checkpoint_format": "gptq"}, 8), ({"checkpoint_format": "gptq_v2"}, 7)],
)
def test_gptq_stores_zeros_less_1_in_its_first_version(version: dict[str, str], zero: int) -> None:
    tensors = {
        "qweight": words(*[ASCENDING] * 8),
        "qzeros": words(0x77777777),
        "scales": torch.tensor([[0.5, 1, 2, 4, 8, 16, 32, 64]]).half(),
    }
    found = weights_of(gptq(**version), tensors, 8, 8)
    assert torch.equal(found, (EIGHT - zero) * tensors["scales"].float().T)


@pytest.mark.parametrize("zeros", [0x77777777, 0x88888888])
def test_symmetric_weights_of_gptq_have_no_zeros_whatever_is_stored(zeros: int) -> None:
    tensors = {"qweight": words(*[ASCENDING] * 8), "qzeros": words(zeros), "scales": torch.ones(1, 8)}
    assert torch.equal(weights_of(gptq(sym=True), tensors, 8, 8), (EIGHT - 8).expand(8, 8))


def test_gptq_stores_a_zero_of_0_as_15() -> None:
    tensors = {"qweight": words(*[ASCENDING] * 8), "qzeros": words(0xFFFFFFFF), "scales": torch.ones(1, 8)}
    assert torch.equal(weights_of(gptq(), tensors, 8, 8), EIGHT.expand(8, 8))


def test_gptq_packs_inputs_of_8_bits_with_the_lowest_bits_first() -> None:
    tensors = {
        "qweight": words(0xFF800100, 0x00FF8001, 0x7F7F7F7F, 0x80808080),
        "qzeros": words(0x007F7FFE),  # of outputs 0 to 3: 255, 128, 128 and 1
        "scales": torch.ones(1, 4),
    }
    expected = [[-255, -254, -127, 0], [-127, 0, 127, -128], [-1] * 4, [127] * 4]
    assert weights_of(gptq(bits=8), tensors, 4, 4).tolist() == expected


def test_act_order_gives_every_input_its_own_group() -> None:
    order = torch.tensor([1, 0, 0, 1] * 16, dtype=torch.int32)
    tensors = {
        "qweight": words(*[ASCENDING] * 8).repeat(8, 1),
        "qzeros": torch.cat((words(0x77777777), words(0x11111111))),  # zeros of the groups: 8 and 2
        "scales": torch.tensor([[1.0] * 8, [10.0] * 8]),
        "g_idx": order,
    }
    found = weights_of(gptq(group_size=32, desc_act=True), tensors, 8, 64)
    numbers = EIGHT.repeat(8)
    assert torch.equal(found, torch.where(order == 1, (numbers - 2) * 10, numbers - 8).expand(8, 64))


def test_awq_interleaves_the_outputs_of_a_word() -> None:
    config = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
    tensors = {
        "qweight": words(0x75316420).expand(32, 1).contiguous(),  # outputs 0, 2, 4, 6, 1, 3, 5, 7 are 0 to 7
        "qzeros": words(0x02461357),  # output i has 7 - i
        "scales": torch.ones(1, 8).half(),
    }
    expected = torch.tensor([-7.0, -5, -3, -1, 1, 3, 5, 7])
    assert torch.equal(weights_of(config | {"zero_point": True}, tensors, 8, 32), expected[:, None].expand(8, 32))
    del tensors["qzeros"]
    found = weights_of(config | {"zero_point": False}, tensors, 8, 32)
    assert torch.equal(found, (EIGHT - 8)[:, None].expand(8, 32))


def test_compressed_tensors_packs_inputs_with_the_lowest_bits_first() -> None:
    tensors = {"weight_packed": words(ASCENDING, 0xFEDCBA98), "weight_scale": torch.tensor([[2.0]])}
    assert torch.equal(weights_of(compressed(), tensors, 1, 16), torch.arange(-8.0, 8)[None] * 2)
    assert torch.equal(weights_of(compressed(), tensors, 1, 11), torch.arange(-8.0, 3)[None] * 2)


def test_compressed_tensors_packs_zeros_of_neighbouring_outputs() -> None:
    config = compressed(strategy="group", group_size=32, symmetric=False)
    tensors = {
        "weight_packed": words(*[0x88888888] * 8).expand(8, 8).contiguous(),
        "weight_zero_point": torch.cat((words(ASCENDING), words(0xFEDCBA98)), dim=1),
        "weight_scale": torch.ones(8, 2),
    }
    found = weights_of(config, tensors, 8, 64)
    assert torch.equal(found, torch.cat(((8 - EIGHT)[:, None].expand(8, 32), -EIGHT[:, None].expand(8, 32)), dim=1))


def test_weight_scale_inv_multiplies_the_numbers_of_a_block() -> None:
    config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    tensors = {
        "weight": torch.full((130, 200), 3.0).to(torch.float8_e4m3fn),
        "weight_scale_inv": torch.tensor([[0.5, 2.0], [4.0, 16.0]]),
    }
    found = weights_of(config, tensors, 130, 200)
    assert found[[0, 0, 127, 127, 128, 129], [0, 128, 127, 199, 127, 128]].tolist() == [1.5, 6, 1.5, 6, 12, 48]
    whole = {"weight": tensors["weight"], "weight_scale_inv": torch.tensor(0.25)}
    assert set(weights_of({"quant_method": "fp8"}, whole, 130, 200).flatten().tolist()) == {0.75}


NVFP4 = compressed(type="float", strategy="tensor_group", group_size=16) | {"format": "nvfp4-pack-quantized"}
MXFP8 = compressed(type="float", num_bits=8, strategy="group", group_size=32) | {"format": "mxfp8-quantized"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
SIZES = "-1, 32, 64 or 128"
WEIGHTS = "config_groups.group_0.weights"


@pytest.mark.parametrize(
    ("config", "key", "value", "allowed"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quant_algo", "'NVFP4'", "'FP8'"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, "quant_algo", "'W4A16_AWQ'", "'FP8'"),
        (NVFP4, WEIGHTS, "'float4, nvfp4-pack-quantized'", "float8, int8, int4"),
        (MXFP8, "format", "'mxfp8-quantized'", "'float-quantized' or 'naive-quantized' for float8"),
        ({"quant_method": "mxfp4"}, "quant_method", "'mxfp4'", ""),
        ({"quant_method": "exl2", "bits": 4.0}, "quant_method", "'exl2'", ""),
        ({"quant_method": "exl3", "bits": 4.0}, "quant_method", "'exl3'", ""),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "load_in_8bit", "", ""),
        ({"quant_method": "hqq"}, "quant_method", "'hqq'", ""),
        ({"quant_method": "aqlm"}, "quant_method", "'aqlm'", ""),
        ({"quant_method": "marlin"}, "quant_method", "'marlin'", ""),
        (gptq(bits=3), "bits", "3", "4 or 8"),
        (gptq(group_size=100), "group_size", "100", SIZES),
        (gptq(checkpoint_format="marlin"), "checkpoint_format", "'marlin'", "'gptq' or 'gptq_v2'"),
        (gptq(is_marlin_format=True), "checkpoint_format", "'marlin'", "'gptq' or 'gptq_v2'"),
        (AWQ | {"version": "gemv"}, "version", "'gemv'", "'gemm'"),
        (AWQ | {"bits": 8}, "bits", "8", "4"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt", "'e5m2'", "'e4m3'"),
        ({"quant_method": "fp8", "weight_block_size": [128, 100]}, "weight_block_size", "[128, 100]", "32, 64 or 128"),
        (compressed(num_bits=3), WEIGHTS, "'int3, pack-quantized'", "float8, int8, int4"),
        (compressed(strategy="group", group_size=100), f"{WEIGHTS}.group_size", "100", SIZES),
        (compressed() | {"format": "marlin-24"}, "format", "'marlin-24'", "'pack-quantized' for int4"),
        (compressed(type="float", num_bits=8, symmetric=False) | {"format": "float-quantized"}, "symmetric", "", ""),
        (compressed() | {"sparsity_config": {"format": "sparse"}}, "sparsity_config", "{'format': 'sparse'}", ""),
        (compressed() | {"config_groups": {}}, "config_groups", "{}", "an object"),
    ],
    ids=str,
)
def test_other_formats_are_refused_by_file_key_and_value(
    config: dict[str, Any], key: str, value: str, allowed: str, tmp_path: Path
) -> None:
    message = refusal(tmp_path, config)
    assert f"{CONFIG}: quantization_config" in message
    assert key in message and value in message and allowed in message  # noqa: PT018
    assert message.endswith("would do")


def test_groups_of_two_formats_are_refused(tmp_path: Path) -> None:
    config = compressed()
    weights = config["config_groups"]["group_0"]["weights"] | {"num_bits": 8}
    config["config_groups"]["group_1"] = {"targets": ["re:.*down_proj"], "weights": weights}
    assert re.search("config_groups is 'group_0, group_1', .* of one format and group size", refusal(tmp_path, config))


def test_a_format_of_its_own_file_is_refused_as_well(tmp_path: Path) -> None:
    path = shutil.copytree(saved_model("llama"), tmp_path / "model")
    (path / HF_QUANT_CONFIG).write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    with pytest.raises(UnsupportedModelError, match=r"quant_algo is 'NVFP4', which is not read"):
        load_config(path)


def test_gpt_oss_is_refused_for_its_format(tmp_path: Path) -> None:
    message = refusal(tmp_path, {"quant_method": "mxfp4"}, model_type="gpt_oss")
    assert re.search("'gpt_oss' is not supported: its weights are MXFP4", message)


def refusal(folder: Path, quantization: dict[str, Any], **values: Any) -> str:
    """Return the error of a checkpoint whose config.json has these values."""
    path = shutil.copytree(saved_model("llama"), folder / "model")
    config = json.loads((path / CONFIG).read_text()) | values | {"quantization_config": quantization}
    (path / CONFIG).write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError) as caught:
        load_config(path)
    return str(caught.value)
