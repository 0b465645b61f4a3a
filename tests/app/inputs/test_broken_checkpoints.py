"""A folder with one fault is loaded as transformers loads it, for any split, or refused in one sentence."""

from __future__ import annotations

import contextlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from app.inputs.models import read_checkpoint
from app.inputs.prompts import encode_chat, encode_raw
from engine.errors import ConfigError, RequestError, UnsupportedModelError
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from tests.support.broken_checkpoints import BrokenFolder, broken_folders
from tests.support.engines import complete_all, make_engine
from tests.support.tiny_models import saved_family

Outcome = tuple[list[int], list[int] | None, list[int], str]
FOLDERS = broken_folders()
TEXT = "The quick brown fox drafts tokens"
MESSAGES = [{"role": "user", "content": "Snow falls."}]
N_TOKENS = 3


def reference(folder: Path) -> Outcome:
    """What transformers makes of a folder: ids of a text and of a chat (None: refused), generated ids and their text.

    Raises:
        Exception: of any kind, where transformers cannot load the folder, or would draw some of its weights.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, loaded = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    if loaded["missing_keys"]:
        raise ValueError(f"random weights for {loaded['missing_keys']}")
    ids = tokenizer(TEXT)["input_ids"]
    try:
        chat = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False) or None
    except Exception:
        chat = None
    eos = model.generation_config.eos_token_id
    settings = GenerationConfig(max_new_tokens=N_TOKENS, do_sample=False, eos_token_id=eos, pad_token_id=0)
    prompt = torch.tensor([ids])
    out = model.float().eval().generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=settings)
    written = out[0, len(ids) :].tolist()
    return ids, chat, written, tokenizer.decode(written, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def answer(folder: Path, stages: int) -> Outcome:
    """The same, by the engine."""
    spec, tokenizer = read_checkpoint(folder)
    ids = encode_raw(tokenizer, TEXT)
    try:
        chat = encode_chat(tokenizer, MESSAGES)
    except ConfigError:
        chat = None
    options = TargetOptions(str(folder), stages=stages, kv_bytes=1 << 20, block_size=16)
    params = SamplingParams(max_tokens=N_TOKENS, stop_ids=spec.eos_ids)
    engine = make_engine(LocalTarget.load(options, folder))
    [done] = complete_all(engine, [Request(ids, params, "autoregressive")])
    text = tokenizer.decode(done.token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return ids, chat, done.token_ids, text


STRICTER = re.compile(
    r"max_position_embeddings (0|-1)|num_hidden_layers 0|initializer_range -1\.0|head_dim 0|rms_norm_eps -1|"
    r"mistral config.json layer_types null|llama config.json sliding_window 5|llama with {\"sliding_window"
)
"""Values that transformers loads, and that are refused: models without layers, positions or head sizes, negative
epsilons, another family (Ministral), and a window that transformers applies to its cache and not to prompts."""
LENIENT = re.compile(
    r"dtype is (auto|torch\.)|index.json metadata|generation_config.json (bos_token_id|output_)|"
    r"tokenizer_config.json model_max_length"
)
"""Values that transformers fails on, and that no text depends on."""
PLAIN = "a folder in two shards"
SAMPLE = {one.name for one in FOLDERS[:: len(FOLDERS) // 52]} | {
    PLAIN,
    "qwen3 tied True with another head",
    "llama tied True without an embedding",
    "config.json dtype is auto",
    "config.json dtype is torch.bfloat16",
    "config.json dtype is half",
    "config.json dtype is float",
    'llama with {"hidden_activation": null}',
    'qwen2 with {"sliding_window": 0, "use_sliding_window": false, "layer_types": null}',
    "model-00002-of-00002.safetensors absent",
    "tokenizer.json absent",
    "an adapter",
}


def parameters() -> list[Any]:
    """All folders; those that are not of the fixed sample are marked ``matrix``."""
    marks = {True: (), False: (pytest.mark.matrix,)}
    return [pytest.param(one, marks=marks[one.name in SAMPLE], id=one.name) for one in FOLDERS]


@cache
def plain(family: str) -> Outcome:
    return reference(saved_family(family))


def outcome(folder: Path, stages: int) -> Outcome | str:
    """What the engine answers, or the sentence that refuses the folder."""
    try:
        return answer(folder, stages)
    except (ConfigError, UnsupportedModelError, RequestError) as error:
        return str(error)


@pytest.mark.parametrize("broken", parameters())
@pytest.mark.filterwarnings("ignore")  # transformers warns about what is about to fail
def test_a_folder_is_loaded_as_transformers_loads_it_or_refused_in_one_sentence(
    broken: BrokenFolder, tmp_path: Path
) -> None:
    folder = broken.write(tmp_path / "checkpoint")
    expected: Outcome | None = None
    with contextlib.suppress(Exception):  # of any kind
        expected = reference(folder)
    found = outcome(folder, 1)
    assert outcome(folder, 2) == found, "the number of stages decides"
    if not isinstance(found, str):
        if expected is None:
            assert LENIENT.search(broken.name), "transformers cannot load it"
            expected = plain(broken.family)
        assert found == expected
        return
    assert expected is None or STRICTER.search(broken.name), found
    assert "\n" not in found
    assert len(found) < 600
    assert broken.named in found
