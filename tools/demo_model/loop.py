"""The training loop: a budget of time or tokens, packed batches, checkpoints that survive a kill.

The schedule follows the share of the budget that is used: a run of minutes ends in time, however busy the machine is; a
run of tokens may be paused and shares a machine with other work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from tqdm import tqdm

from tools.demo_model.losses import Loss
from tools.demo_model.optim import factor_at, optimizers_for, step_all

TOKENS_PER_PASS = 4096  # one forward and backward on a CPU; a fixed shape, so that compiling pays
SHORT, LONG = 512, 2048  # row lengths, tokens
ROWS = ((0.0, SHORT), (0.93, LONG))  # from which share of the budget on rows have which length
TWO_PASSES_FROM = 0.9  # small steps early, larger ones once progress is limited by noise
CHECKPOINT_EVERY = 120.0  # seconds
SMOOTHING = 0.97


class Stream(Protocol):
    """Endless, resumable batches."""

    def batch(self, rows: int, length: int) -> torch.Tensor:
        """The next one, int64 [rows, length + 1]."""

    def state(self) -> dict[str, Any]:
        """All that `restore` needs to go on with the very next token."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""


@dataclass
class Progress:
    """What a run has used so far."""

    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
    loss: float = 0.0  # nats per token, smoothed


class Run:
    """One model's training, on the device where the model is; owns its optimisers and its checkpoint file.

    Args:
        model: to train.
        loss: of it, for a batch.
        stream: of batches.
        checkpoint: file.
        tokens_per_pass: of one forward and backward, a multiple of LONG.
        compiled: whether the loss is compiled, for all rows but the longest.
        rate: of learning, in usual ones.
        rows: shares of the budget in order, the first one 0, and the length of rows from there on, tokens.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        stream: Stream,
        checkpoint: Path,
        *,
        tokens_per_pass: int = TOKENS_PER_PASS,
        compiled: bool = True,
        rate: float = 1.0,
        rows: tuple[tuple[float, int], ...] = ROWS,
    ) -> None:
        self.model, self.stream, self.checkpoint = model, stream, checkpoint
        self.progress = Progress()
        self._device = next(model.parameters()).device
        self._tokens_per_pass = tokens_per_pass
        self._rows = rows
        # The longest rows come last and briefly: compiling their shape would cost more than it saves.
        short = torch.compile(loss, dynamic=False) if compiled else loss
        self._losses: dict[int, Loss] = {length: short for _, length in rows[:-1]} | {rows[-1][1]: loss}
        self._optimizers = optimizers_for(model, rate)
        self._saved_at = 0.0

    def train(
        self,
        minutes: float | None = None,
        after_epoch: Callable[[int], None] | None = None,
        *,
        tokens: int | None = None,
    ) -> Progress:
        """Train until `minutes` or `tokens` in total (earlier runs of this checkpoint included) are used up.

        Of the two one is given. `after_epoch` hears the number of every epoch of a stream that has epochs; its time
        counts.
        """
        started = time.monotonic() - self.progress.seconds
        bar_format = "{percentage:3.1f}%|{bar:20}| {postfix}"
        with tqdm(total=1.0, bar_format=bar_format, mininterval=5, miniters=0) as bar:
            while (share := self._share(minutes, tokens)) < 1:
                epoch = self.epoch
                self._step(share)
                if after_epoch is not None and self.epoch > epoch:
                    after_epoch(self.epoch)
                self.progress.seconds = time.monotonic() - started
                self._report(bar, self._share(minutes, tokens))
                if self.progress.seconds - self._saved_at > CHECKPOINT_EVERY:
                    self.save()
        self.save()
        return self.progress

    def _share(self, minutes: float | None, tokens: int | None) -> float:
        if tokens is not None:
            return self.progress.tokens / tokens
        assert minutes is not None
        return self.progress.seconds / (minutes * 60)

    @property
    def epoch(self) -> int:
        """Epochs that have ended, by tokens; 0 for a stream without end."""
        n_tokens = getattr(self.stream, "n_tokens", None)
        return self.progress.tokens // n_tokens if n_tokens else 0

    def _step(self, share: float) -> None:
        length = next(length for start, length in reversed(self._rows) if share >= start)
        passes = 2 if share >= TWO_PASSES_FROM else 1
        total = 0.0
        for _ in range(passes):
            batch = self.stream.batch(self._tokens_per_pass // length, length).to(self._device)
            loss = self._losses[length](batch) / passes
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        step_all(self._optimizers, factor_at(share))
        p = self.progress
        p.loss = total if p.steps == 0 else SMOOTHING * p.loss + (1 - SMOOTHING) * total
        p.tokens += passes * self._tokens_per_pass
        p.steps += 1

    def _report(self, bar: tqdm[Any], share: float) -> None:
        p = self.progress
        bar.set_postfix_str(
            f"loss {p.loss:.3f} step {p.steps} {p.tokens / 1e6:.2f}M tokens {p.tokens / p.seconds:.0f}/s",
            refresh=False,
        )
        bar.update(min(share, bar.total) - bar.n)  # tqdm forgets a total that is exceeded

    def save(self) -> None:
        """Write the checkpoint; a kill meanwhile leaves the previous one whole."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [o.state_dict() for o in self._optimizers],
            "stream": self.stream.state(),
            "progress": asdict(self.progress),
        }
        unfinished = self.checkpoint.with_suffix(".part")
        torch.save(state, unfinished)
        unfinished.replace(self.checkpoint)
        self._saved_at = self.progress.seconds

    def resume(self) -> None:
        """Go on from the checkpoint file."""
        # Our own file; NumPy's state is inside. What belongs on a device is put there by its owner.
        state = torch.load(self.checkpoint, weights_only=False, map_location="cpu")
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.stream.restore(state["stream"])
        self.progress = Progress(**state["progress"])
        self._saved_at = self.progress.seconds
