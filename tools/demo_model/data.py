"""The demo corpus: three domains that may be shipped, as documents, split by instruction.

This module decides which text may be used; tokens are `tools.demo_model.packing`'s business.

domain | source                                                         | licence
-------|----------------------------------------------------------------|--------
chat   | AlpacaEval answers of the models in `CHAT_SOURCES`              | Apache-2.0 / MIT
math   | GSM8K, train split                                              | MIT
code   | documented functions and classes of the running Python's stdlib | PSF
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from tools.demo_model.stdlib_code import Definition, read_definitions

Domain = Literal["chat", "math", "code"]
DOMAINS: tuple[Domain, ...] = ("chat", "math", "code")
CHAT_SOURCES = frozenset(
    {
        "Mixtral-8x7B-Instruct-v0.1",
        "Mistral-7B-Instruct-v0.2",
        "Mistral-7B-Instruct-v0.3",
        "zephyr-7b-beta",
        "phi-2-sft",
    }
)
HELD_OUT_ONE_IN = 50
BOS, END = "<|bos|>", "<|end|>"
SYSTEM_PROMPTS = ("You are a helpful assistant.", "Answer clearly and briefly.")


class Message(TypedDict):
    """One message of a conversation."""

    role: str
    content: str


class Row(TypedDict):
    """One line of a corpus file."""

    source: str
    messages: list[Message]


@dataclass(frozen=True)
class Document:
    """One training text. `key` names its instruction: equal keys always fall on the same side of the split."""

    domain: Domain
    key: str
    text: str  # rendered with the special tokens, from <|bos|> to <|end|>

    @property
    def held_out(self) -> bool:
        """True for about one instruction in fifty, by hash, so that no list has to be kept."""
        return digest(self.key) % HELD_OUT_ONE_IN == 0


def digest(text: str) -> int:
    """A stable hash of `text` (Python's own differs between runs)."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def render(messages: list[Message]) -> str:
    """The chat template, as text."""
    return BOS + "".join(f"<|{m['role']}|>{m['content']}{END}" for m in messages)


def load_documents(corpus: Path) -> list[Document]:
    """Every document of every domain; texts that occur twice are kept once."""
    documents = [*chat(corpus), *math(corpus), *code()]
    return list({d.text: d for d in documents}.values())


def chat(corpus: Path) -> Iterator[Document]:
    """Answers of openly licensed chat models; about one in ten gets a system message."""
    for row in read_rows(corpus / "chat_alpacaeval.jsonl"):
        if row["source"] not in CHAT_SOURCES:
            continue
        messages: list[Message] = [{"role": m["role"], "content": m["content"].strip()} for m in row["messages"]]
        choice = digest(row["source"] + messages[0]["content"]) // HELD_OUT_ONE_IN
        if choice % 10 == 0:
            system = SYSTEM_PROMPTS[choice // 10 % len(SYSTEM_PROMPTS)]
            messages.insert(0, {"role": "system", "content": system})
        yield Document("chat", row["messages"][0]["content"].strip(), render(messages))


def math(corpus: Path) -> Iterator[Document]:
    """School arithmetic with worked answers; the calculator marks <<a+b=c>> stay."""
    for row in read_rows(corpus / "math_gsm8k_train.jsonl"):
        messages = row["messages"]
        yield Document("math", messages[0]["content"], render(messages))


def code() -> Iterator[Document]:
    """Each definition twice: as a file would hold it, and as the answer to a request."""
    for definition in read_definitions():
        yield Document("code", definition.key, f"{BOS}{definition.source}{END}")
        answer = f"```python\n{definition.source}\n```"
        messages: list[Message] = [
            {"role": "user", "content": request_for(definition)},
            {"role": "assistant", "content": answer},
        ]
        yield Document("code", definition.key, render(messages))


def request_for(definition: Definition) -> str:
    """A request in one of four wordings; half of them show the signature."""
    kind, name, summary = definition.kind, definition.name, definition.summary
    wordings = (
        f"Write a Python {kind} called {name}. {summary}",
        f"Complete this Python {kind}:\n\n```python\n{definition.head}\n```",
        f"Write a Python {kind} with this signature: `{definition.signature}`. {summary}",
        f"Implement `{name}` in Python: {summary}",
    )
    return wordings[digest(definition.source) % len(wordings)]


def read_rows(path: Path) -> Iterator[Row]:
    """The objects of a JSON-lines file."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
