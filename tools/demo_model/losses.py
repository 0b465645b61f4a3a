"""What a model is asked to minimise: next tokens, or a larger model's next-token distribution."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM

Loss = Callable[[torch.Tensor], torch.Tensor]  # int64 [rows, length + 1] -> scalar
DISTILLED = 0.7  # share of the drafter's loss that comes from the target's distribution


def logits_of(model: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Next-token logits, fp32 [rows, length, vocabulary], where `tokens` are; the matrix products run in bf16."""
    with torch.autocast(tokens.device.type, torch.bfloat16):
        hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
        logits: torch.Tensor = model.lm_head(hidden)
    return logits.float()


def next_token_loss(model: LlamaForCausalLM) -> Loss:
    """Mean cross-entropy over all tokens of a packed batch, prompts included, nats."""

    def loss(batch: torch.Tensor) -> torch.Tensor:
        logits = logits_of(model, batch[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    return loss


def distillation_loss(model: LlamaForCausalLM, teacher: LlamaForCausalLM) -> Loss:
    """Cross-entropy to the teacher's distribution, mixed with that to the text itself.

    The drafter is judged by how often it agrees with the target, not by how well it models text.
    """

    def loss(batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = logits_of(teacher, batch[:, :-1]).flatten(0, 1).softmax(-1)
        logits = logits_of(model, batch[:, :-1]).flatten(0, 1)
        soft = F.cross_entropy(logits, wanted)
        hard = F.cross_entropy(logits, batch[:, 1:].flatten())
        return DISTILLED * soft + (1 - DISTILLED) * hard

    return loss
