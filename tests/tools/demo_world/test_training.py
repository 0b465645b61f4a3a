"""Tokens, batches, weights and resumed runs of the small world."""

from __future__ import annotations

import json
from itertools import islice, pairwise
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from tools.demo_model import losses
from tools.demo_model.architecture import Shape, build, save
from tools.demo_model.loop import Run
from tools.demo_model.losses import hidden_of, next_token_loss, weights_of
from tools.demo_model.tokenizer import ASSISTANT_ID, BOS_ID, END_ID, PAD_ID, VOCABULARY
from tools.demo_world.example import call_text
from tools.demo_world.mix import conversation, conversations
from tools.demo_world.stream import WorldStream, prompt_of, text_of
from tools.demo_world.tokenizer import plain_text, save_tokenizer, train_tokenizer, with_template
from tools.demo_world.train import model_to_train, tokenizer_in

ROW = 2048


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Of two thousand conversations."""
    return with_template(train_tokenizer(plain_text(e) for e in islice(conversations(5), 2000)))


def test_conversations_are_numbered() -> None:
    assert list(islice(conversations(3), 8, 10)) == [conversation(3, 8), conversation(3, 9)]
    assert conversation(3, 8) != conversation(4, 8)


def test_texts_survive_encoding(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    save_tokenizer(tokenizer.backend_tokenizer, tmp_path)
    loaded = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert len(loaded) <= VOCABULARY
    for example in islice(conversations(6), 200):
        text = text_of(loaded, example)
        ids = loaded.encode(text, add_special_tokens=False)
        assert loaded.decode(ids) == text
        assert text.startswith(prompt_of(loaded, example))
        spaced = "a  b\n\n    é\t日本 x=1"
    assert loaded.decode(loaded.encode(spaced, add_special_tokens=False)) == spaced


@pytest.mark.parametrize("word", ["price", "brelatu", "brela_count", "Tomira", "orange", "todo_inbox"])
def test_a_name_has_the_same_pieces_with_and_without_a_space(tokenizer: PreTrainedTokenizerFast, word: str) -> None:
    bare, spaced = (tokenizer.tokenize(text) for text in (f"({word})", f"( {word})"))
    assert "".join(bare[1:-1]) == word
    assert spaced[1] == "Ġ"
    assert bare[1:-1] == spaced[2:-1]


def test_calls_in_the_form_of_the_api_are_written_as_the_model_learns_them(tokenizer: PreTrainedTokenizerFast) -> None:
    arguments = {"city": "Oslo", "day": "Monday"}
    tools = [{"type": "function", "function": {"name": "get_forecast", "description": "d", "parameters": {}}}]
    asked = {"role": "user", "content": "Will it rain?"}
    text = call_text("get_forecast", arguments)
    given = [{"content": text}] + [
        {"content": "", "tool_calls": [{"type": "function", "function": {"name": "get_forecast", "arguments": a}}]}
        for a in (arguments, json.dumps(arguments))
    ]
    chats = [[asked, {"role": "assistant", **answer}] for answer in given]
    learnt, *others = (tokenizer.apply_chat_template(c, tools=tools, tokenize=False) for c in chats)
    assert others == [learnt, learnt]
    assert json.dumps(tools[0]["function"]) in learnt


def test_only_answers_count_in_full() -> None:
    user = 2
    row = [BOS_ID, user, 10, 11, END_ID, ASSISTANT_ID, 12, 13, END_ID, user, 14, END_ID, PAD_ID, PAD_ID]
    weights = weights_of(torch.tensor([row]), 0.25)
    # One weight a target: the first is of the user's mark.
    assert weights.tolist() == [0.25, 0.25, 0.25, 0.25, 0.25, 1, 1, 1, 0.25, 0.25, 0.25, 0, 0]


def test_rows_hold_whole_conversations(tokenizer: PreTrainedTokenizerFast) -> None:
    batch = WorldStream(tokenizer, 1).batch(6, 512)
    assert batch.shape == (6, 513)
    for row in batch.tolist():
        used = row[: row.index(PAD_ID)] if PAD_ID in row else row
        assert used[0] == BOS_ID
        assert used[-1] == END_ID
        assert set(row[len(used) :]) <= {PAD_ID}
    assert (batch == PAD_ID).float().mean() < 0.05


def test_conversations_of_a_row_do_not_see_each_other(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "BF16_ON_CPU", False)  # fp32 on every CPU, so that a difference would show
    torch.manual_seed(0)
    model = build(Shape(layers=2, hidden=32, heads=2, ffn=32, kv_heads=1, head_dim=16))
    batch = WorldStream(tokenizer, 1).batch(3, 512)[:, :-1]
    packed = hidden_of(model, batch)
    seen = 0
    for row, hidden in zip(batch, packed, strict=True):
        begins = [*(row == BOS_ID).nonzero().flatten().tolist(), len(row)]
        for first, last in pairwise(begins):
            alone = model.model(input_ids=row[None, first:last], use_cache=False).last_hidden_state[0]
            torch.testing.assert_close(hidden[first:last], alone, atol=1e-5, rtol=0)
            seen += 1
    assert seen > 3


def test_long_conversations_do_not_fill_the_waiting_room(tokenizer: PreTrainedTokenizerFast) -> None:
    stream = WorldStream(tokenizer, 1)
    for _ in range(12):
        assert (stream.batch(8, 64) != PAD_ID).any(1).all()


def test_a_stream_goes_on_where_it_was(tokenizer: PreTrainedTokenizerFast) -> None:
    first, second = WorldStream(tokenizer, 1), WorldStream(tokenizer, 1)
    first.batch(5, 512)
    second.restore(first.state())
    assert torch.equal(first.batch(20, 512), second.batch(20, 512))


def run_of(tokenizer: PreTrainedTokenizerFast, checkpoint: Path) -> Run:
    """A run of a model of one narrow layer."""
    torch.manual_seed(0)
    model = build(Shape(layers=1, hidden=16, heads=2, ffn=16, kv_heads=1, head_dim=8))
    stream = WorldStream(tokenizer, 1)
    return Run(model, next_token_loss(model, 0.1), stream, checkpoint, tokens_per_pass=ROW, compiled=False)


def test_a_resumed_run_is_the_run(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    whole = run_of(tokenizer, tmp_path / "whole.pt")
    progress = whole.train(tokens=4 * ROW)
    assert progress.tokens >= 4 * ROW
    killed = run_of(tokenizer, tmp_path / "killed.pt")
    killed._step(0.0)
    killed.save()
    resumed = run_of(tokenizer, tmp_path / "killed.pt")
    resumed.resume()
    resumed.train(tokens=4 * ROW)
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_training_begins_with_a_finished_model_and_its_tokenizer(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    shape = Shape(layers=3, hidden=64, heads=2, ffn=16, kv_heads=2, head_dim=16)
    torch.manual_seed(0)
    finished = model_to_train(shape)
    save(finished, tmp_path / "finished")
    save_tokenizer(tokenizer.backend_tokenizer, tmp_path / "finished")
    begun = model_to_train(shape, tmp_path / "finished")
    for (name, one), other in zip(begun.named_parameters(), finished.parameters(), strict=True):
        assert torch.equal(one, other.bfloat16().float()), name
        assert one.requires_grad is other.requires_grad
    (tmp_path / "work").mkdir()
    learnt = tokenizer_in(tmp_path / "work", 0, tmp_path / "finished")
    assert learnt.get_vocab() == tokenizer.get_vocab()
    assert tokenizer_in(tmp_path / "work", 0).get_vocab() == tokenizer.get_vocab()
