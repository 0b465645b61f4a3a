"""The training loop: AdamW with a budget of steps or minutes, and checkpoints that survive a kill."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from app.training.batches import PaddedTexts
from engine.errors import ConfigError

Loss = Callable[[PaddedTexts, torch.Generator], Tensor]
Batch = Callable[[int], PaddedTexts]  # of a step, from 0, on the network's device
BETAS = (0.9, 0.95)
WARM_UP = 0.04  # share of the budget in which the rate rises
CLIP = 1.0  # of the gradient's norm
SMOOTHING = 0.97
POINTS = 100  # of the curve of the loss


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Settings of one run; either ``steps`` or ``minutes`` is its budget, earlier parts of the run included."""

    steps: int | None = None
    minutes: float | None = None
    rate: float = 2e-3  # the highest learning rate
    checkpoint_every: float = 120.0  # seconds
    seed: int = 0
    decisive: Mapping[str, Any] = field(default_factory=dict)  # all that decides the drafter, by name


@dataclass(slots=True)
class TrainingProgress:
    """What a run has used so far."""

    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0  # of the texts of all steps, prompts included
    loss: float = 0.0  # nats, smoothed
    curve: list[tuple[int, float]] = field(default_factory=list)  # (steps, loss) about every hundredth of the budget


class TrainingRun:
    """One drafter's training; owns the optimiser, the random numbers and the checkpoint file.

    It continues from ``checkpoint`` if that file exists; raises ConfigError if decisive values differ from the file's.
    """

    def __init__(self, network: nn.Module, loss: Loss, batch: Batch, checkpoint: Path, settings: LoopSettings) -> None:
        self.network, self.loss, self.batch, self.settings = network, loss, batch, settings
        self.checkpoint, self.progress = checkpoint, TrainingProgress()
        self._weights = [weight for weight in network.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(self._weights, lr=settings.rate, betas=BETAS, weight_decay=0.0, fused=True)
        self._generator = torch.Generator().manual_seed(settings.seed)
        if checkpoint.exists():
            self._resume()
        self._saved_at = self.progress.seconds

    def train(self) -> TrainingProgress:
        started = time.monotonic() - self.progress.seconds
        self.network.train()
        with tqdm(total=1.0, bar_format="{percentage:3.1f}%|{bar:20}| {postfix}", mininterval=5, miniters=0) as bar:
            while (share := self._share()) < 1:
                self._step(share)
                p = self.progress
                p.seconds = time.monotonic() - started
                bar.set_postfix_str(f"loss {p.loss:.3f} step {p.steps} {p.steps / p.seconds:.1f}/s", refresh=False)
                bar.update(min(self._share(), 1.0) - bar.n)
                if self._share() >= len(p.curve) / POINTS:
                    p.curve.append((p.steps, p.loss))
                if p.seconds - self._saved_at > self.settings.checkpoint_every:
                    self._save()
        self.network.eval()
        self._save()
        return self.progress

    def _share(self) -> float:
        steps, minutes = self.settings.steps, self.settings.minutes or 0.0
        return self.progress.seconds / (minutes * 60) if steps is None else self.progress.steps / steps

    def _step(self, share: float) -> None:
        p = self.progress
        texts = self.batch(p.steps)
        loss = self.loss(texts, self._generator)
        if not torch.isfinite(loss):
            why = f"the loss of step {p.steps} is {loss.item()}"
            raise ConfigError(f"--rate is {self.settings.rate}, and {why}; use a lower rate")
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._weights, CLIP)
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.rate * rate_factor(share)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        p.loss = loss.item() if p.steps == 0 else SMOOTHING * p.loss + (1 - SMOOTHING) * loss.item()
        p.steps += 1
        p.tokens += texts.n_tokens

    def _save(self) -> None:
        """Write the checkpoint; if the process is killed meanwhile, the previous one stays whole."""
        unfinished = self.checkpoint.with_suffix(".part")
        state = {
            "network": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "generator": self._generator.get_state(),
            "progress": asdict(self.progress),
            "decisive": dict(self.settings.decisive),
        }
        torch.save(state, unfinished)
        unfinished.replace(self.checkpoint)
        self._saved_at = self.progress.seconds

    def _resume(self) -> None:
        state: dict[str, Any] = torch.load(self.checkpoint, weights_only=True, map_location="cpu")
        known = state.get("decisive", {})
        for name, value in self.settings.decisive.items():
            if known.get(name) != value:
                has = f"{self.checkpoint.parent} has a training with {name} {known.get(name)!r}, not {value!r}"
                raise ConfigError(f"{has}; use the same value, another --out folder, or --restart")
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"])
        self.progress = TrainingProgress(**state["progress"])


def rate_factor(share: float) -> float:
    """The learning rate after this share of the budget, as a share of the highest: a linear rise, then a cosine."""
    if share < WARM_UP:
        return max(share / WARM_UP, 0.02)
    return (1 + math.cos(math.pi * (share - WARM_UP) / (1 - WARM_UP))) / 2
