"""The demo models of the package load, share a tokenizer, and stay small."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.demo.paths import DEMO_TARGET

DEMO = DEMO_TARGET.parent
ROLES = ("target", "drafter")
MAX_BYTES = 16_000_000
CONVERSATION = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is 2 + 3?"},
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(DEMO / "target")


def test_the_models_are_small_and_share_a_tokenizer() -> None:
    assert sum(file.stat().st_size for role in ROLES for file in (DEMO / role).iterdir()) <= MAX_BYTES
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (DEMO / "target" / name).read_bytes() == (DEMO / "drafter" / name).read_bytes()


@pytest.mark.parametrize("role", ROLES)
def test_a_model_has_bf16_weights_small_logits_and_generates(role: str, tokenizer: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(DEMO / role)
    assert model.dtype == torch.bfloat16
    assert model.config.vocab_size == len(tokenizer) == 4096
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    prompt = tokenizer.apply_chat_template(CONVERSATION, return_tensors="pt", return_dict=True)
    output = model.generate(**prompt, do_sample=False, max_new_tokens=8)
    assert prompt["input_ids"].shape[1] < output.shape[1] <= prompt["input_ids"].shape[1] + 8
    with torch.no_grad():  # an offset common to all logits would cost precision in fp32
        assert model.float()(**prompt).logits.abs().max() < 64


def test_texts_round_trip_with_one_bos_and_single_tokens_for_roles(tokenizer: Any) -> None:
    text = "for i in range(10):\n    print(i)  # größer, 数\n"
    ids = tokenizer(text).input_ids
    assert (ids[0], ids.count(tokenizer.bos_token_id)) == (tokenizer.bos_token_id, 1)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    chat = tokenizer.apply_chat_template(CONVERSATION, tokenize=True, add_generation_prompt=True)["input_ids"]
    special = [token for token in tokenizer.convert_ids_to_tokens(chat) if token.startswith("<|")]
    assert special == ["<|bos|>", "<|system|>", "<|end|>", "<|user|>", "<|end|>", "<|assistant|>"]
