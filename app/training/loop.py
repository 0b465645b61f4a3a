"""The training loop: AdamW under a budget of steps or minutes, and checkpoints that survive a kill."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from tqdm import tqdm

from app.training.texts import PaddedTexts
from engine.errors import ConfigError

Loss = Callable[[PaddedTexts, torch.Generator], Tensor]
SMOOTHING = 0.97


class BatchStream(Protocol):
    """Endless batches, on the network's device."""

    def batch(self) -> PaddedTexts:
        """The next one."""

    def state(self) -> dict[str, Any]:
        """What ``restore`` needs to go on with the very next batch; tensors, numbers, strings, lists, dicts."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Of one run. Of ``steps`` and ``minutes`` one is given: what the run may use up in all, with its earlier parts."""

    steps: int | None = None
    minutes: float | None = None
    rate: float = 2e-3  # of learning, at its highest
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    warm_up: float = 0.04  # share of the budget
    decay: Literal["cosine", "linear"] = "cosine"  # to zero, over the rest
    clip: float = 1.0  # of the gradient's norm
    checkpoint_every: float = 120.0  # seconds
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise ConfigError(f"steps is {self.steps}, minutes {self.minutes}: a run has one budget of the two")
        if not 0 <= self.warm_up < 1:
            raise ConfigError(f"warm_up is {self.warm_up}: a share of the budget, from 0 to below 1")

    def factor(self, share: float) -> float:
        """What the rate is multiplied by when this share of the budget is used up."""
        if share < self.warm_up:
            return max(share / self.warm_up, 0.02)
        left = max(0.0, (1 - share) / (1 - self.warm_up))
        return (1 - math.cos(math.pi * left)) / 2 if self.decay == "cosine" else left


@dataclass(slots=True)
class TrainingProgress:
    """What a run has used so far."""

    seconds: float = 0.0
    steps: int = 0
    loss: float = 0.0  # nats, smoothed


class TrainingRun:
    """One drafter's training; owns the optimiser, the random numbers and the checkpoint file.

    Args:
        network: whose trainable weights are trained, on its device.
        loss: of a batch, with the run's random numbers.
        checkpoint: file; where it exists, the run goes on from it.

    Raises:
        ConfigError: the checkpoint is another drafter's.
    """

    def __init__(
        self, network: nn.Module, loss: Loss, stream: BatchStream, checkpoint: Path, settings: LoopSettings
    ) -> None:
        self.network, self.loss, self.stream, self.settings = network, loss, stream, settings
        self.checkpoint, self.progress = checkpoint, TrainingProgress()
        self._weights = [weight for weight in network.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._weights, lr=settings.rate, betas=settings.betas, weight_decay=settings.weight_decay
        )
        self._generator = torch.Generator().manual_seed(settings.seed)
        self._saved_at = 0.0
        if checkpoint.exists():
            self._resume()

    def train(self, until_step: int | None = None) -> TrainingProgress:
        """Train until the budget is used up, or, as if interrupted, until so many steps are made."""
        started = time.monotonic() - self.progress.seconds
        self.network.train()
        with tqdm(total=1.0, bar_format="{percentage:3.1f}%|{bar:20}| {postfix}", mininterval=5, miniters=0) as bar:
            while (share := self._share()) < 1 and self.progress.steps != until_step:
                self._step(share)
                self.progress.seconds = time.monotonic() - started
                self._report(bar)
                if self.progress.seconds - self._saved_at > self.settings.checkpoint_every:
                    self.save()
        self.network.eval()
        self.save()
        return self.progress

    def save(self) -> None:
        """Write the checkpoint; a kill meanwhile leaves the previous one whole."""
        unfinished = self.checkpoint.with_suffix(".part")
        torch.save(
            {
                "network": self.network.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "stream": self.stream.state(),
                "generator": self._generator.get_state(),
                "progress": asdict(self.progress),
            },
            unfinished,
        )
        unfinished.replace(self.checkpoint)
        self._saved_at = self.progress.seconds

    def _share(self) -> float:
        settings, progress = self.settings, self.progress
        if settings.steps is not None:
            return progress.steps / settings.steps
        assert settings.minutes is not None
        return progress.seconds / (settings.minutes * 60)

    def _step(self, share: float) -> None:
        loss = self.loss(self.stream.batch(), self._generator)
        if not torch.isfinite(loss):
            raise ConfigError(
                f"rate is {self.settings.rate}: the loss of step {self.progress.steps} is {loss.item()}; lower it"
            )
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._weights, self.settings.clip)
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.rate * self.settings.factor(share)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        p, latest = self.progress, loss.item()
        p.loss = latest if p.steps == 0 else SMOOTHING * p.loss + (1 - SMOOTHING) * latest
        p.steps += 1

    def _report(self, bar: tqdm[Any]) -> None:
        p = self.progress
        bar.set_postfix_str(f"loss {p.loss:.3f} step {p.steps} {p.steps / p.seconds:.1f}/s", refresh=False)
        bar.update(min(self._share(), 1.0) - bar.n)

    def _resume(self) -> None:
        state = torch.load(self.checkpoint, weights_only=True, map_location="cpu")
        try:
            self.network.load_state_dict(state["network"])
            self._optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise ConfigError(f"{self.checkpoint} is the checkpoint of another drafter's training: {error}") from error
        self.stream.restore(state["stream"])
        self._generator.set_state(state["generator"])
        self.progress = TrainingProgress(**state["progress"])
        self._saved_at = self.progress.seconds
