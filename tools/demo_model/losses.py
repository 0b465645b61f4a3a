"""What a model is asked to minimise: next tokens, or a larger model's next-token distribution."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM

from tools.demo_model.tokenizer import ASSISTANT_ID, BOS_ID, END_ID, PAD_ID, ROLE_IDS

Loss = Callable[[torch.Tensor], torch.Tensor]  # int64 [rows, length + 1] -> scalar
DISTILLED = 0.7  # share of the drafter's loss that comes from the target's distribution
# A CPU without instructions for bf16 emulates it: 65 s for a pass of 4,096 tokens, and the products take most of it.
BF16_ON_CPU = bool(torch.cpu.get_capabilities().get("avx512_bf16"))


def bf16_is_fast(device: torch.device) -> bool:
    """Whether products in bf16 take less time than in fp32."""
    return BF16_ON_CPU or device.type != "cpu"


def hidden_of(model: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """What the last layer says, [rows, length, hidden], where `tokens` are; in bf16 where that is fast."""
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=bf16_is_fast(tokens.device)):
        apart, positions = documents_apart(tokens)
        hidden: torch.Tensor = model.model(
            input_ids=tokens, attention_mask=apart, position_ids=positions, use_cache=False
        ).last_hidden_state
    return hidden


def documents_apart(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What keeps the documents of a packed row from each other, as if each were alone.

    Args:
        tokens: int64 [rows, length]; a document begins where BOS stands.

    Returns:
        The additive attention mask, fp32 [rows, 1, length, length], and positions, int64 [rows, length].
    """
    places = torch.arange(tokens.shape[1], device=tokens.device)
    begins = torch.where(tokens == BOS_ID, places, 0).cummax(1).values
    seen = (begins[:, :, None] == begins[:, None, :]) & (places[:, None] >= places)
    mask = torch.zeros(seen.shape, device=tokens.device).masked_fill(~seen, torch.finfo(torch.float32).min)
    return mask[:, None], places - begins


def logits_of(model: LlamaForCausalLM, hidden: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Next-token logits, fp32 [n_kept, vocabulary], at the places `kept` (int64 [n_kept]) of all rows in a line."""
    with torch.autocast(hidden.device.type, torch.bfloat16, enabled=bf16_is_fast(hidden.device)):
        logits: torch.Tensor = model.lm_head(hidden.flatten(0, 1)[kept])
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


def places_of(batch: torch.Tensor, prompt_weight: float) -> torch.Tensor:
    """The targets of a packed batch that count: all of answers, of prompts a share of `prompt_weight`.

    They are drawn from the batch's own content, so that a run that was killed and resumed draws the same.

    Returns:
        int64 [n_kept], places of all rows in a line.
    """
    drawn = torch.rand(batch[:, 1:].numel(), generator=torch.Generator().manual_seed(int(batch.sum())))
    return (drawn.to(batch.device) < weights_of(batch, prompt_weight)).nonzero().flatten()


def next_token_loss(model: LlamaForCausalLM, prompt_weight: float = 1.0) -> Loss:
    """Mean cross-entropy over the tokens of a packed batch, a share `prompt_weight` of those of prompts, nats."""

    def at_places(hidden: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        kept = places_of(batch, prompt_weight)
        return F.cross_entropy(logits_of(model, hidden, kept), batch[:, 1:].flatten()[kept])

    uncompiled = _uncompiled(at_places)

    def loss(batch: torch.Tensor) -> torch.Tensor:
        return uncompiled(hidden_of(model, batch[:, :-1]), batch)

    return loss


def distillation_loss(model: LlamaForCausalLM, teacher: LlamaForCausalLM, prompt_weight: float = 1.0) -> Loss:
    """Cross-entropy to the teacher's distribution, mixed with that to the text itself.

    The drafter is judged by how often it agrees with the target, not by how well it models text.
    """

    def at_places(hidden: torch.Tensor, taught: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        kept = places_of(batch, prompt_weight)
        logits = logits_of(model, hidden, kept)
        soft = F.cross_entropy(logits, logits_of(teacher, taught, kept).softmax(-1))
        hard = F.cross_entropy(logits, batch[:, 1:].flatten()[kept])
        return DISTILLED * soft + (1 - DISTILLED) * hard

    uncompiled = _uncompiled(at_places)

    def loss(batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            taught = hidden_of(teacher, batch[:, :-1])
        return uncompiled(hidden_of(model, batch[:, :-1]), taught, batch)

    return loss


def _uncompiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The same in the midst of what is compiled: the number of places differs from batch to batch."""
    kept: Callable[..., torch.Tensor] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return kept
