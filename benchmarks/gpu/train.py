"""How good do demo models become with 4 to 16M parameters and several passes over the same text?

Held-out loss after every epoch, tokens a second, and the same for a drafter that is distilled from the largest model.
Documented functions of Python's standard library are always there; chat and arithmetic are files to carry along, in
corpus/ of the checkout: chat_alpacaeval.jsonl and math_gsm8k_train.jsonl (see tools.demo_model.data). Weights are not
kept. Each model gets a share of the time that is left. The learning rate ends at 0: only a model's last row is final.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
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
from tools.demo_model.data import Document, code, load_documents
from tools.demo_model.evaluate import perplexities
from tools.demo_model.loop import LONG, Run
from tools.demo_model.losses import distillation_loss, next_token_loss
from tools.demo_model.packing import PackedStream, encode

CORPUS = ("chat_alpacaeval.jsonl", "math_gsm8k_train.jsonl")


@dataclass(frozen=True, slots=True)
class Training:
    """One model's training."""

    name: str
    shape: Shape
    share: float  # of the time that is left when it begins
    teacher: str = ""  # name of the model that it is distilled from
    is_compiled: bool = False  # compiling a small model costs more than it saves


SMALL = Shape(layers=1, hidden=64, heads=1, ffn=64)
TINY = (Training("target", SMALL, 1), Training("drafter", SMALL, 1, teacher="target"))
TRAININGS = (
    Training("target 4M", SHAPES["target"], 0.25),
    Training("target 14M", Shape(layers=8, hidden=384, heads=6, ffn=1024), 0.45, is_compiled=True),
    Training("14M, dropout", Shape(layers=8, hidden=384, heads=6, ffn=1024, dropout=0.1), 0.7, is_compiled=True),
    Training("drafter 2M", Shape(layers=3, hidden=192, heads=3, ffn=512), 0.85, teacher="target 14M"),
)


def load_texts(is_tiny: bool) -> list[Document]:
    """Return the documents that are there."""
    if is_tiny:
        return list(islice(code(), 300))
    folder = REPOSITORY / "corpus"
    if all((folder / name).is_file() for name in CORPUS):
        return list(load_documents(folder))
    return list({document.text: document for document in code()}.values())


class School:
    """Trains models on the same text."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        self._setting, self._file, documents = setting, folder / "model.pt", load_texts(setting.is_tiny)
        tokenizer = Tokenizer.from_file(str(DEMO_TARGET / "tokenizer.json"))
        self._training, self._held_out = (
            encode(tokenizer, [one for one in documents if one.held_out == is_held_out])
            for is_held_out in (False, True)
        )
        self._models: dict[str, LlamaForCausalLM] = {}

    def train(self, training: Training) -> list[Row]:
        """Return a row for each epoch and one for the end."""
        model = self._models[training.name] = build(training.shape).to(self._setting.device)
        loss = next_token_loss(model)
        if training.teacher:
            loss = distillation_loss(model, self._models[training.teacher].eval().requires_grad_(False))
        n, stream = LONG if self._setting.is_tiny else 8 * LONG, PackedStream(self._training, seed=0)
        run = Run(model, loss, stream, self._file, tokens_per_pass=n, compiled=training.is_compiled)
        began, rows, parameters = time.monotonic(), list[Row](), sum(p.numel() for p in model.parameters()) / 1e6

        def add_row(epoch: int | str) -> None:
            model.eval()
            perplexity, seconds = perplexities(model, self._held_out)["overall"], time.monotonic() - began
            model.train()
            row = {"model": training.name, "parameters, M": parameters, "epoch": epoch, "minutes": seconds / 60}
            row |= {"tokens/s": run.progress.tokens / seconds, "training loss": run.progress.loss}
            rows.append(row | {"held-out loss": math.log(perplexity), "held-out perplexity": perplexity})

        left = max(0.0, self._setting.deadline - time.monotonic()) / 60
        run.train(0.003 if self._setting.is_tiny else training.share * left, add_row)
        add_row("end")
        return rows


def train_models(setting: Setting) -> Iterator[Row]:
    """Train all models, one after the other; losses are in nats."""
    torch.manual_seed(0)
    with TemporaryDirectory() as folder:
        school = School(setting, Path(folder))
        for training in TINY if setting.is_tiny else TRAININGS:
            yield from attempt(setting, training.name, partial(school.train, training))


PARTS = (Part("models", 4, "What are larger models and more passes worth?", train_models),)
