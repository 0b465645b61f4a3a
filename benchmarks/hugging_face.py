"""Hugging Face's assisted generation and prompt lookup, with every forward of the target counted."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

K = 5  # drafted tokens
LOOKUP = 10  # looked-up tokens


@dataclass(slots=True)
class GeneratedText:
    """One output: its ids, and how many tokens each forward committed, the first one (the prompt's) apart."""

    ids: list[int]
    first: int
    steps: list[int]


class StepStreamer:
    """A streamer that notes how many tokens come at a time; the first thing put is the prompt."""

    def __init__(self) -> None:
        self.puts: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        """Tokens that one forward committed."""
        self.puts.append(value.numel())

    def end(self) -> None:
        """Nothing more comes."""


class Counted:
    """A Hugging Face model whose forwards are counted."""

    def __init__(self, path: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.n_forwards = 0
        self._forward = self.model.forward
        self.model.forward = self._count

    def _count(self, *args: Any, **kwargs: Any) -> Any:
        self.n_forwards += 1
        return self._forward(*args, **kwargs)

    def generate(self, prompt: Sequence[int], arguments: argparse.Namespace, **options: Any) -> GeneratedText:
        """One output; every forward must have committed something."""
        ids, steps = torch.tensor([prompt]), StepStreamer()
        self.n_forwards = 0
        torch.manual_seed(arguments.seed)
        sampling: dict[str, Any] = {"do_sample": False}
        if arguments.temperature:
            sampling = {"do_sample": True, "temperature": arguments.temperature, "top_k": 0}
        mask = torch.ones_like(ids)
        out = self.model.generate(
            ids, attention_mask=mask, max_new_tokens=arguments.max_tokens, streamer=steps, **sampling, **options
        )
        committed = steps.puts[1:]
        assert len(committed) == self.n_forwards, (committed, self.n_forwards)
        return GeneratedText(out[0, len(prompt) :].tolist(), committed[0], committed[1:])


def assistant(path: Path) -> Any:
    """The drafting model as a fair count needs it."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    model.generation_config.num_assistant_tokens = K
    model.generation_config.num_assistant_tokens_schedule = "constant"
    model.generation_config.assistant_confidence_threshold = 0
    return model


def hugging_face(arguments: argparse.Namespace) -> dict[str, Callable[[Sequence[int]], GeneratedText]]:
    """Rows of Hugging Face by label."""
    counted, small = Counted(arguments.model), assistant(arguments.draft_model)
    lookup: dict[str, Any] = {"prompt_lookup_num_tokens": LOOKUP}
    rows: dict[str, Callable[[Sequence[int]], GeneratedText]] = {
        "HF generate": lambda prompt: counted.generate(prompt, arguments),
        f"HF assisted, {K} tokens": lambda prompt: counted.generate(prompt, arguments, assistant_model=small),
        f"HF prompt lookup, {LOOKUP}": lambda prompt: counted.generate(prompt, arguments, **lookup),
        f"HF prompt lookup, {LOOKUP}, n-gram 3": lambda prompt: counted.generate(
            prompt, arguments, max_matching_ngram_size=3, **lookup
        ),
    }
    if arguments.temperature:
        del rows["HF generate"]  # no text equals another's
    return rows
