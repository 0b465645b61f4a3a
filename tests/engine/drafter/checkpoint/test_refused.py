"""A checkpoint that is no drafter, an unsupported one, or one of another target is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.drafter.checkpoint.read import read_drafter
from engine.errors import ConfigError, UnsupportedModelError
from tests.engine.drafter.checkpoint.drafters import LAYOUTS, TARGET, Public, layers, medusa

Change = Callable[[Public], object]


def config(**fields: Any) -> Change:
    return lambda public: public.config.update(fields)


def own(**fields: Any) -> Change:
    return lambda public: public.config["spectra_drafter"].update(fields)


def put(name: str, table: torch.Tensor) -> Change:
    return lambda public: public.tensors.update({name: table})


def without(name: str) -> Change:
    return lambda public: public.tensors.pop(name)


def tensor(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Change:
    return lambda public: public.tensors.update({name: torch.zeros(shape, dtype=dtype)})


UNSUPPORTED: dict[str, tuple[str, Change, str]] = {
    "hydra": ("medusa", config(hydra_num_heads=4), "holds Hydra heads, .* reads the tokens drafted before it"),
    "mtp by type": ("speculators_eagle3", config(speculators_model_type="mtp"), "no supported model family has one"),
    "mtp by tensors": ("eagle1", tensor("mtp.fc.weight", 2, 2), "no supported model family has one"),
    "pard": (
        "eagle1", config(pard_token=3), r"whole language model with mask tokens \(PARD, pard_token\).*--draft-model"),
    "another of speculators": (
        "peagle", config(speculators_model_type="hass"), "'hass'; supported are eagle3, peagle, dflash, dspark"),
    "domino": (
        "dflash", config(dflash_config={"projector_type": "domino"}),
        "projector_type is 'domino'; it must be 'dflash' or 'dspark'"),
    "no block": ("dflash", config(block_size=None), "lacks block_size, which DFlash needs"),
    "no mask": ("dflash", config(dflash_config={}), "lacks mask_token_id, which DFlash needs"),
    "no mask in speculators": ("peagle", config(mask_token_id=None), "lacks mask_token_id, which speculators peagle"),
    "no mask in P-EAGLE": ("vllm_peagle", config(ptd_token_id=None), "lacks mask_token_id, which P-EAGLE needs"),
    "no states": (
        "nvidia_eagle3", config(eagle_config={"use_aux_hidden_state": False}), "use_aux_hidden_state is false"),
    "missing": ("eagle3", without("fc.weight"), "lacks tensors 'fc.weight', which a drafter of method eagle needs"),
    "missing norm": ("eagle3", without("midlayer.hidden_norm.weight"), "lacks tensors 'layers.0.hidden_norm.weight'"),
    "missing layer": ("peagle", lambda public: public.config["transformer_layer_config"].update(num_hidden_layers=3),
                      r"lacks tensors 'layers.2.q.weight', .*, 'layers.2.o.weight' and 5 more"),
    "missing head": ("medusa", without("1.1.weight"), "lacks tensors 'heads.1.out.weight'"),
    "missing first head": ("medusa", without("0.1.weight"), r"lacks the output matrix of Medusa head 0 \(0.1.w"),
    "promised norm": ("eagle3", config(fc_norm=True), "lacks tensors 'fc_norms.0.weight', 'fc_norms.1.weight'"),
    "left over": ("eagle1", tensor("norm.weight", 32), "has tensors 'norm.weight', which method eagle does not use"),
    "unknown name": ("dflash", tensor("prefix_gru.weight_ih_l0", 2), "has tensors 'prefix_gru.weight_ih_l0', which"),
    "shape": ("eagle3", tensor("midlayer.mlp.up_proj.weight", 41, 32),
              r"'layers.0.up.weight' in .* has the shape \[41, 32\], but .* needs \[40, 32\]"),
    "dtype": ("eagle3", tensor("norm.weight", 32, dtype=torch.int8), "'norm.weight' in .* has the dtype torch.int8"),
    "activation": ("eagle3", config(hidden_act="gelu"), "hidden_act is 'gelu'; it must be 'silu'"),
    "rope": ("eagle3", config(rope_scaling={"type": "dynamic"}), "rope_type is 'dynamic'; supported are default"),
    "partial rope": ("eagle3", config(partial_rotary_factor=0.5), "partial_rotary_factor is 0.5"),
    "mixed layers": ("dflash", config(layer_types=["full_attention", "sliding_attention"]), "all of one type"),
    "no size": ("eagle3", lambda public: public.config.pop("hidden_size"), "missing required field `hidden_size`"),
    "wrong type": ("eagle3", config(hidden_size="wide"), r"Expected `int`, got `str` - at `\$.hidden_size`"),
    "no vocabulary": ("eagle3", lambda public: [public.tensors.pop(name) for name in ("d2t", "t2d")],
                      "drafts 11 of 97 ids, but has no table d2t"),
    "few offsets": ("eagle3", tensor("d2t", 10, dtype=torch.int64), "d2t in .* has 10 draft ids; .* is 11"),
    "ids for offsets": ("eagle3", put("d2t", torch.arange(11) * 8 + 9), "must hold offsets"),
    "tables that differ": ("eagle3", put("d2t", torch.zeros(11).long()), "d2t and t2d in .* name different ids"),
    "ids for offsets, without the other table": (
        "eagle3", lambda public: (public.tensors.pop("t2d"), put("d2t", torch.arange(11) * 9 + 6)(public)),
        "does not give 11 different ids below 97"),
    "own layout, another method": ("parallelspec_eagle", own(method="eagle"), "'eagle' with a whole vocabulary"),
    "own layout, one draft": ("parallelspec_eagle", own(n_drafts=1), "n_drafts, which is at least 2"),
    "own layout, few masks": ("parallelspec_medusa", tensor("mask_embeddings", 3, 32),
                              r"'mask_embeddings' .* shape \[3, 32\], .* needs \[4, 32\]"),
}  # fmt: skip
OF_ANOTHER_TARGET: list[tuple[str, Change, dict[str, Any], str]] = [
    *((name, config(), {"vocab_size": 98}, "vocabulary of 97 token ids, the target has 98") for name in LAYOUTS),
    *((name, config(), {"hidden_size": 64}, r"the target's have width 64 \(hidden_size") for name in LAYOUTS),
    *((name, config(), {"n_layers": 9}, r"has no layer (9|11), its layers are 0 to 8")
      for name in ("dflash", "speculators_dflash", "deepspec", "nvidia_eagle3")),
    ("eagle31", config(eagle_aux_hidden_state_layer_ids=[2, 6]), {},
     r"reads 3 states of width 32 \(fc.weight\), but 2 layers are named: \[1, 5\]"),
    ("dflash", lambda public: public.config["dflash_config"].update(mask_token_id=97), {},
     "mask_token_id 97; the target's token ids are 0 to 96"),
]  # fmt: skip


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_an_unsupported_drafter_is_refused(case: str, tmp_path: Path) -> None:
    layout, change, message = UNSUPPORTED[case]
    public = LAYOUTS[layout]()
    change(public)
    with pytest.raises(UnsupportedModelError, match=message):
        read_drafter(public.save(tmp_path), TARGET)


@pytest.mark.parametrize(("layout", "change", "target", "message"), OF_ANOTHER_TARGET)
def test_a_drafter_of_another_target_is_refused(
    layout: str, change: Change, target: dict[str, Any], message: str, tmp_path: Path
) -> None:
    public = LAYOUTS[layout]()
    change(public)
    with pytest.raises(ConfigError, match=message):
        read_drafter(public.save(tmp_path), replace(TARGET, **target))


def test_language_models_and_hydra_heads_are_refused(tmp_path: Path) -> None:
    model = Public({"architectures": ["LlamaForCausalLM"], **layers()})
    model.add_layer("model.layers.0.", ("input_layernorm",))
    with pytest.raises(UnsupportedModelError, match=r"holds no known drafter; .* \(--draft-model\)"):
        read_drafter(model.save(tmp_path / "model"), TARGET)
    folder = medusa().save(tmp_path / "hydra")
    (folder / "medusa_lm_head.pt").unlink()
    (folder / "hydra_lm_head.pt").write_bytes(b"not a pickle")  # refused before it is read
    with pytest.raises(UnsupportedModelError, match="holds Hydra heads"):
        read_drafter(folder, TARGET)
