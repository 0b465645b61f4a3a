"""Held-out perplexity of a demo model, per domain and overall."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM

from tools.demo_model.data import DOMAINS
from tools.demo_model.losses import hidden_of, logits_of
from tools.demo_model.packing import Encoded, padded
from tools.demo_model.tokenizer import PAD_ID

ROWS = 8
MAX_LENGTH = 1024  # tokens of a document that are scored


def perplexities(model: LlamaForCausalLM, held_out: Encoded) -> dict[str, float]:
    """Perplexity per token of each domain that has documents, and of all held-out tokens together ("overall")."""
    sums = {domain: nats_and_tokens(model, held_out[domain]) for domain in DOMAINS if held_out[domain]}
    nats = sum(n for n, _ in sums.values())
    tokens = sum(t for _, t in sums.values())
    result: dict[str, float] = {domain: math.exp(n / t) for domain, (n, t) in sums.items()}
    return {**result, "overall": math.exp(nats / tokens)}


@torch.no_grad()
def nats_and_tokens(model: LlamaForCausalLM, documents: list[np.ndarray]) -> tuple[float, int]:
    """Summed negative log-likelihood and number of scored tokens; each document starts afresh."""
    ordered = sorted(documents, key=len)
    nats, tokens = 0.0, 0
    for first in range(0, len(ordered), ROWS):
        chunk = ordered[first : first + ROWS]
        rows = padded(chunk, min(MAX_LENGTH, len(chunk[-1]))).to(model.device)
        targets = rows[:, 1:].flatten()
        scored = (targets != PAD_ID).nonzero().flatten()
        logits = logits_of(model, hidden_of(model, rows[:, :-1]), scored)
        nats += F.cross_entropy(logits, targets[scored], reduction="sum").item()
        tokens += len(scored)
    return nats, tokens
