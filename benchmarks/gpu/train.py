"""How good do demo models become with 4 to 16M parameters and several passes over the same text?

Held-out loss after every epoch, tokens a second, and the same for a drafter that is distilled from the largest model.
Documented functions of Python's standard library are always there; chat and arithmetic are files to carry along, in
corpus/ of the checkout: chat_alpacaeval.jsonl and math_gsm8k_train.jsonl (see tools.demo_model.data). Weights are not
kept. The learning rate ends at 0: only a model's last row is final.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from app.demo.paths import DEMO_TARGET
from benchmarks.gpu.running.results import REPOSITORY
from benchmarks.gpu.setting import Part, Row, Setting, attempt
from tools.demo_model.architecture import SHAPES, Shape, build
from tools.demo_model.data import code, load_documents
from tools.demo_model.evaluate import perplexities
from tools.demo_model.loop import LONG, Run
from tools.demo_model.losses import distillation_loss, next_token_loss
from tools.demo_model.packing import PackedStream, encode

CORPUS = REPOSITORY / "corpus"
Training = tuple[str, Shape, float, str]  # name, shape, share of the time that is left, name of the teacher
SMALL, LARGE = Shape(layers=1, hidden=64, heads=1, ffn=64), Shape(layers=8, hidden=384, heads=6, ffn=1024)
TINY: tuple[Training, ...] = (("target", SMALL, 1, ""), ("drafter", SMALL, 1, "target"))
TRAININGS: tuple[Training, ...] = (
    ("target 4M", SHAPES["target"], 0.25, ""),
    ("target 14M", LARGE, 0.45, ""),
    ("target 14M, dropout", Shape(layers=8, hidden=384, heads=6, ffn=1024, dropout=0.1), 0.7, ""),
    ("drafter 2M", Shape(layers=3, hidden=192, heads=3, ffn=512), 0.85, "target 14M"),
)


class School:
    """Trains models on the same text."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        self._setting, self._file = setting, folder / "model.pt"
        documents = load_documents(CORPUS) if not setting.is_tiny and CORPUS.is_dir() else code()
        unique = {one.text: one for one in islice(documents, 300 if setting.is_tiny else None)}.values()
        tokenizer = Tokenizer.from_file(str(DEMO_TARGET / "tokenizer.json"))
        self._training = encode(tokenizer, [one for one in unique if not one.held_out])
        self._held_out = encode(tokenizer, [one for one in unique if one.held_out])
        self._models: dict[str, LlamaForCausalLM] = {}

    def train(self, name: str, shape: Shape, share: float, teacher: str) -> list[Row]:
        """Return a row for each epoch and one for the end; losses are in nats."""
        model = self._models[name] = build(shape).to(self._setting.device)
        loss, is_tiny = next_token_loss(model), self._setting.is_tiny
        if teacher:
            loss = distillation_loss(model, self._models[teacher].eval().requires_grad_(False))
        n, stream = LONG if is_tiny else 8 * LONG, PackedStream(self._training, seed=0)
        run = Run(model, loss, stream, self._file, tokens_per_pass=n, compiled=not is_tiny)
        began, rows, parameters = time.monotonic(), list[Row](), sum(p.numel() for p in model.parameters()) / 1e6

        def add_row(epoch: int | str) -> None:
            model.eval()
            perplexity, seconds = perplexities(model, self._held_out)["overall"], time.monotonic() - began
            model.train()
            row: Row = {"model": name, "parameters, M": parameters, "epoch": epoch, "minutes": seconds / 60}
            progress: Row = {"tokens/s": run.progress.tokens / seconds, "training loss": run.progress.loss}
            rows.append({**row, **progress, "held-out loss": math.log(perplexity), "held-out perplexity": perplexity})

        left = max(0.0, self._setting.deadline - time.monotonic()) / 60
        run.train(0.003 if is_tiny else share * left, add_row)
        add_row("end")
        return rows


def train_models(setting: Setting) -> Iterator[Row]:
    """Train all models, one after the other."""
    torch.manual_seed(0)
    with TemporaryDirectory() as folder:
        school = School(setting, Path(folder))
        for training in TINY if setting.is_tiny else TRAININGS:
            yield from attempt(setting, training[0], partial(school.train, *training))


PARTS = (Part("models", 4, "What are larger models and more passes worth?", train_models),)
