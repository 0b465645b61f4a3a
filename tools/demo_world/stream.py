"""The small world as training batches: generated as they are needed, whole conversations in every row."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from tools.demo_model.tokenizer import BOS_ID, PAD_ID
from tools.demo_world.example import Example
from tools.demo_world.mix import conversation

AT_ONCE = 64  # conversations that are encoded together
WAITING = 48  # of which a row's next one is chosen: enough that some fits into almost any gap


def text_of(tokenizer: PreTrainedTokenizerFast, example: Example) -> str:
    """A whole conversation as the chat template writes it."""
    messages, tools = list(example.messages), list(example.tools) or None
    text: str = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    return text


def prompt_of(tokenizer: PreTrainedTokenizerFast, example: Example) -> str:
    """All but the last message, ready to be answered."""
    messages, tools = list(example.messages)[:-1], list(example.tools) or None
    text: str = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    return text


class WorldStream:
    """Endless packed batches; conversations are never cut, what is left of a row is padding."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self._tokenizer, self._seed = tokenizer, seed
        self._next = 0  # number of the first conversation that is not encoded
        self._waiting: list[np.ndarray] = []  # uint16 [n] each

    def batch(self, rows: int, length: int) -> torch.Tensor:
        """The next `rows` rows, int64 [rows, length + 1]: inputs and targets overlap by all but one.

        Conversations that are longer than a row are left out: few, and only of rows that are short.
        """
        batch = np.full((rows, length + 1), PAD_ID, dtype=np.int64)
        self._keep(length + 1)
        for row in batch:
            used = 0
            while (ids := self._fitting(length + 1 - used, length + 1)) is not None:
                row[used : used + len(ids)] = ids
                used += len(ids)
        return torch.from_numpy(batch)

    def _fitting(self, room: int, most: int) -> np.ndarray | None:
        """The first waiting conversation of at most `room` tokens, of those that `most` tokens hold."""
        while len(self._waiting) < WAITING:
            self._encode()
            self._keep(most)
        fitting = (i for i, ids in enumerate(self._waiting) if len(ids) <= room)
        i = next(fitting, None)
        return None if i is None else self._waiting.pop(i)

    def _keep(self, most: int) -> None:
        self._waiting = [ids for ids in self._waiting if len(ids) <= most]

    def _encode(self) -> None:
        numbers = range(self._next, self._next + AT_ONCE)
        self._next += AT_ONCE
        texts = [text_of(self._tokenizer, conversation(self._seed, i)) for i in numbers]
        for encoding in self._tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False):
            ids = np.array(encoding.ids, dtype=np.uint16)
            assert ids[0] == BOS_ID
            self._waiting.append(ids)

    def state(self) -> dict[str, Any]:
        """All that `restore` needs to go on with the very next token."""
        return {"next": self._next, "waiting": list(self._waiting)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self._next, self._waiting = state["next"], list(state["waiting"])
