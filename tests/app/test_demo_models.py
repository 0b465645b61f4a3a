"""The demo models that ship with the package load, agree with each other, and stay small."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

DEMO = Path(__file__).resolve().parents[2] / "app" / "demo"
ROLES = ("target", "drafter")
MAX_BYTES = 16_000_000
CONVERSATION = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is 2 + 3?"},
]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(DEMO / "target")


def test_both_models_together_stay_under_16_megabytes():
    assert sum(f.stat().st_size for role in ROLES for f in (DEMO / role).iterdir()) <= MAX_BYTES


def test_the_drafter_has_the_targets_tokenizer():
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (DEMO / "target" / name).read_bytes() == (DEMO / "drafter" / name).read_bytes()


@pytest.mark.parametrize("role", ROLES)
def test_weights_are_bf16_and_greedy_generation_works(role, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(DEMO / role)
    assert model.dtype == torch.bfloat16
    assert model.config.vocab_size == len(tokenizer) == 4096
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id

    prompt = tokenizer("def add(a, b):", return_tensors="pt")
    output = model.generate(**prompt, do_sample=False, max_new_tokens=8)
    assert prompt.input_ids.shape[1] < output.shape[1] <= prompt.input_ids.shape[1] + 8


@pytest.mark.parametrize("role", ROLES)
def test_logits_are_small_numbers(role, tokenizer):
    """What is equal in all of them decides nothing, and leaves fp32 the larger an error, the larger it is."""
    model = AutoModelForCausalLM.from_pretrained(DEMO / role, dtype=torch.float32)
    ids = tokenizer.apply_chat_template(CONVERSATION, return_tensors="pt", return_dict=False)
    with torch.no_grad():
        assert model(ids).logits.abs().max() < 64


def test_raw_text_gets_one_bos_and_round_trips(tokenizer):
    text = "for i in range(10):\n    print(i)  # größer, 数\n"
    ids = tokenizer(text).input_ids
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_the_chat_template_has_no_doubled_bos(tokenizer):
    text = tokenizer.apply_chat_template(CONVERSATION, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert ids.count(tokenizer.bos_token_id) == 1
    direct = tokenizer.apply_chat_template(CONVERSATION, tokenize=True, add_generation_prompt=True)
    assert direct["input_ids"] == ids


def test_roles_and_turn_ends_are_single_tokens(tokenizer):
    text = tokenizer.apply_chat_template(CONVERSATION, tokenize=False, add_generation_prompt=True)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False).input_ids)
    special = [t for t in tokens if t.startswith("<|")]
    assert special == ["<|bos|>", "<|system|>", "<|end|>", "<|user|>", "<|end|>", "<|assistant|>"]
