"""The oracle of bias, penalties and masks: one row and one token at a time, from the whole text."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.sampling.params import SamplingParams


def shifted_row(
    logits: torch.Tensor, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> torch.Tensor:
    """The row ``[vocab]`` before temperature, after ``prompt`` and ``output``."""
    row = logits.clone()
    for token, bias in params.logit_bias.items():
        row[token] += torch.tensor(bias, dtype=torch.float32)
    if params.repetition_penalty != 1.0:
        for token in {*prompt, *output}:
            penalty = params.repetition_penalty
            row[token] = row[token] * penalty if row[token] < 0 else row[token] / penalty
    if params.presence_penalty or params.frequency_penalty:
        for token in set(output):
            count = torch.tensor(float(output.count(token)))
            row[token] -= params.presence_penalty + params.frequency_penalty * count
    if len(output) < params.min_tokens:
        for token in params.stop_ids:
            if token < len(row):
                row[token] = float("-inf")
    for word in params.bad_words:
        text = [*output, word[-1]]
        if tuple(text[-len(word) :]) == word and word[-1] < len(row):
            row[word[-1]] = float("-inf")
    if params.allowed_ids:
        for token in set(range(len(row))) - {*params.allowed_ids}:
            row[token] = float("-inf")
    return row
