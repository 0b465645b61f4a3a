"""What a model is asked to minimise: next tokens, or a larger model's next-token distribution."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM

from tools.demo_model.tokenizer import ASSISTANT_ID, END_ID, PAD_ID, ROLE_IDS

Loss = Callable[[torch.Tensor], torch.Tensor]  # int64 [rows, length + 1] -> scalar
DISTILLED = 0.7  # share of the drafter's loss that comes from the target's distribution
# A CPU without instructions for bf16 emulates it: 65 s for a pass of 4,096 tokens, and the products take most of it.
BF16_ON_CPU = bool(torch.cpu.get_capabilities().get("avx512_bf16"))


def logits_of(model: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Next-token logits, fp32 [rows, length, vocabulary], where `tokens` are; in bf16 where that is fast."""
    fast = BF16_ON_CPU or tokens.device.type != "cpu"
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=fast):
        hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
        logits: torch.Tensor = model.lm_head(hidden)
    return logits.float()


def weights_of(batch: torch.Tensor, prompt_weight: float) -> torch.Tensor:
    """What every target of a packed batch counts: 1 in an answer, `prompt_weight` elsewhere, 0 for padding.

    Args:
        batch: int64 [rows, length + 1].
        prompt_weight: of what users and the system say.

    Returns:
        fp32 [rows * length].
    """
    places = torch.arange(batch.shape[1], device=batch.device).expand_as(batch)
    is_role = torch.isin(batch, torch.tensor(ROLE_IDS, device=batch.device))
    speaker = torch.where(is_role, places, 0).cummax(1).values  # where the last role was named
    answered = (batch.gather(1, speaker) == ASSISTANT_ID) & (batch != END_ID)
    weights = torch.where(answered[:, :-1], 1.0, prompt_weight)
    return torch.where(batch[:, 1:] == PAD_ID, 0.0, weights).flatten()


def mean(losses: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted mean of `losses`, both [n]."""
    return (losses * weights).sum() / weights.sum()


def next_token_loss(model: LlamaForCausalLM, prompt_weight: float = 1.0) -> Loss:
    """Mean cross-entropy over the tokens of a packed batch, those of prompts at `prompt_weight`, nats."""

    def loss(batch: torch.Tensor) -> torch.Tensor:
        logits = logits_of(model, batch[:, :-1]).flatten(0, 1)
        losses = F.cross_entropy(logits, batch[:, 1:].flatten(), reduction="none")
        return mean(losses, weights_of(batch, prompt_weight))

    return loss


def distillation_loss(model: LlamaForCausalLM, teacher: LlamaForCausalLM, prompt_weight: float = 1.0) -> Loss:
    """Cross-entropy to the teacher's distribution, mixed with that to the text itself.

    The drafter is judged by how often it agrees with the target, not by how well it models text.
    """

    def loss(batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = logits_of(teacher, batch[:, :-1]).flatten(0, 1).softmax(-1)
        logits = logits_of(model, batch[:, :-1]).flatten(0, 1)
        soft = F.cross_entropy(logits, wanted, reduction="none")
        hard = F.cross_entropy(logits, batch[:, 1:].flatten(), reduction="none")
        return mean(DISTILLED * soft + (1 - DISTILLED) * hard, weights_of(batch, prompt_weight))

    return loss
