"""Tokens, batches and resumed runs of the demo model's training."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from tools.demo_model import losses
from tools.demo_model.architecture import Shape, build
from tools.demo_model.loop import Run
from tools.demo_model.losses import hidden_of, next_token_loss
from tools.demo_model.tokenizer import BOS_ID, END_ID, PAD_ID, VOCABULARY
from tools.demo_world.mix import conversations
from tools.demo_world.stream import WorldStream, prompt_of, text_of
from tools.demo_world.tokenizer import plain_text, save_tokenizer, train_tokenizer, with_template

ROW = 2048


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return with_template(train_tokenizer(plain_text(e) for e in islice(conversations(5), 800)))


def test_texts_survive_encoding(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    save_tokenizer(tokenizer.backend_tokenizer, tmp_path)
    loaded = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert len(loaded) <= VOCABULARY
    for example in islice(conversations(6), 60):
        text = text_of(loaded, example)
        assert loaded.decode(loaded.encode(text, add_special_tokens=False)) == text
        assert text.startswith(prompt_of(loaded, example))
    spaced = "a  b\n\n    é\t日本 x=1"
    assert loaded.decode(loaded.encode(spaced, add_special_tokens=False)) == spaced


def test_conversations_of_a_row_are_whole_and_do_not_see_each_other(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "BF16_ON_CPU", False)  # fp32 on every CPU, so that a difference would show
    torch.manual_seed(0)
    model = build(Shape(layers=2, hidden=32, heads=2, ffn=32, kv_heads=1, head_dim=16))
    batch = WorldStream(tokenizer, 1).batch(3, 512)
    for row in batch.tolist():
        used = row[: row.index(PAD_ID)] if PAD_ID in row else row
        assert (used[0], used[-1]) == (BOS_ID, END_ID)
    packed = hidden_of(model, batch[:, :-1])
    for row, hidden in zip(batch[:, :-1], packed, strict=True):
        begins = [*(row == BOS_ID).nonzero().flatten().tolist(), len(row)]
        for first, last in pairwise(begins):
            alone = model.model(input_ids=row[None, first:last], use_cache=False).last_hidden_state[0]
            torch.testing.assert_close(hidden[first:last], alone, atol=1e-5, rtol=0)


def run_of(tokenizer: PreTrainedTokenizerFast, checkpoint: Path) -> Run:
    torch.manual_seed(0)
    model = build(Shape(layers=1, hidden=16, heads=2, ffn=16, kv_heads=1, head_dim=8))
    stream = WorldStream(tokenizer, 1)
    return Run(model, next_token_loss(model, 0.1), stream, checkpoint, tokens_per_pass=ROW, compiled=False)


def test_a_resumed_run_equals_an_uninterrupted_one(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    whole = run_of(tokenizer, tmp_path / "whole.pt")
    whole.train(tokens=4 * ROW)
    killed = run_of(tokenizer, tmp_path / "killed.pt")
    killed.train(tokens=ROW)
    resumed = run_of(tokenizer, tmp_path / "killed.pt")
    resumed.resume()
    resumed.train(tokens=4 * ROW)
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
