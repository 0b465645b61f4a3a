"""How good do the demo models become with 4 to 16M parameters and several passes over the text that may be used?

Held-out loss after every epoch, tokens a second, and the same for a drafter that is distilled from the largest model.
Documented functions of the running Python's standard library are always there; chat and arithmetic are two files that
must be carried, in corpus/ of the checkout: chat_alpacaeval.jsonl and math_gsm8k_train.jsonl (tools.demo_model.data
says which). The tokenizer is the demo target's, so that losses compare with it. Weights are not kept: too large to
travel.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from app.demo.paths import DEMO_TARGET
from benchmarks.gpu.measuring.rows import Row, Rows
from benchmarks.gpu.running.results import ROOT
from benchmarks.gpu.setting import Report, Setting
from tools.demo_model.architecture import SHAPES, Shape, build
from tools.demo_model.data import Document, code, load_documents
from tools.demo_model.evaluate import perplexities
from tools.demo_model.loop import LONG, Run
from tools.demo_model.losses import distillation_loss, next_token_loss
from tools.demo_model.packing import PackedStream, encode

CORPUS = ("chat_alpacaeval.jsonl", "math_gsm8k_train.jsonl")
COLUMNS = {
    "model": "model",
    "parameters": "parameters, M",
    "epoch": "epoch",
    "minutes": "minutes",
    "tokens_s": "tokens/s",
    "training": "training loss, nats",
    "held_out": "held-out loss, nats",
    "perplexity": "held-out perplexity",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """One model's training."""

    name: str
    shape: Shape
    share: float  # of the time that is left when it begins
    teacher: str = ""  # name of the model that it is distilled from
    compiled: bool = False  # what a small one gains in its minutes, compiling would take


def plans(tiny: bool) -> list[Plan]:
    """The present target, a larger one with and without dropout, and a drafter."""
    if tiny:
        small = Shape(layers=1, hidden=64, heads=1, ffn=64)
        return [Plan("target", small, 1, compiled=True), Plan("drafter", small, 1, teacher="target")]
    return [
        Plan("target 4M", SHAPES["target"], 0.25),
        Plan("target 14M", Shape(layers=8, hidden=384, heads=6, ffn=1024), 0.45, compiled=True),
        Plan("target 14M, dropout", Shape(layers=8, hidden=384, heads=6, ffn=1024, dropout=0.1), 0.7, compiled=True),
        Plan("drafter 2M", Shape(layers=3, hidden=192, heads=3, ffn=512), 0.85, teacher="target 14M"),
    ]


def texts(setting: Setting) -> tuple[Iterable[Document], str]:
    """The documents that are here, and which these are."""
    if setting.tiny:
        return islice(code(), 300), "the first functions of the standard library"
    folder = ROOT / "corpus"
    if all((folder / name).is_file() for name in CORPUS):
        return load_documents(folder), "chat, arithmetic, and the standard library's functions"
    return {d.text: d for d in code()}.values(), f"the standard library's functions alone, for want of {folder}"


def can_compile(device: torch.device) -> bool:
    """Whether torch.compile works here; on CUDA it needs a C compiler and Python's headers when it runs."""
    try:
        torch.compile(lambda x: x * 2 + 1)(torch.ones(8, device=device))
    except Exception:  # of many kinds
        return False
    return True


class School:
    """Trains models on the same text."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        found, self.source = texts(setting)
        documents = list(found)
        tokenizer = Tokenizer.from_file(str(DEMO_TARGET / "tokenizer.json"))
        self._training = encode(tokenizer, [d for d in documents if not d.held_out])
        self._held_out = encode(tokenizer, [d for d in documents if d.held_out])
        self.compiled = (setting.on_cuda or not setting.tiny) and can_compile(setting.device)
        self._models: dict[str, LlamaForCausalLM] = {}

    @property
    def n_tokens(self) -> int:
        """Of one epoch."""
        return sum(len(ids) for documents in self._training.values() for ids in documents)

    def train(self, plan: Plan, folder: Path, table: Rows) -> list[Row]:
        """Adds a row an epoch; returns the end's, which is the only one with the learning rate at zero."""
        model = build(plan.shape).to(self._setting.device)
        self._models[plan.name] = model
        if plan.teacher:
            loss = distillation_loss(model, self._models[plan.teacher].eval().requires_grad_(False))
        else:
            loss = next_token_loss(model)
        run = Run(
            model,
            loss,
            PackedStream(self._training, seed=0),
            folder / "model.pt",
            tokens_per_pass=LONG if self._setting.tiny else 8 * LONG,
            compiled=self.compiled and plan.compiled,
        )
        began = time.monotonic()

        def after_epoch(epoch: int) -> None:
            table.add(self._row(plan, run, model, str(epoch), time.monotonic() - began))

        minutes = 0.003 if self._setting.tiny else plan.share * max(0.0, self._setting.left) / 60
        run.train(minutes, after_epoch)
        return [self._row(plan, run, model, "end", time.monotonic() - began)]

    def _row(self, plan: Plan, run: Run, model: LlamaForCausalLM, epoch: str, seconds: float) -> Row:
        model.eval()
        perplexity = perplexities(model, self._held_out)
        model.train()
        return {
            "model": plan.name,
            "parameters": sum(p.numel() for p in model.parameters()) / 1e6,
            "epoch": epoch,
            "minutes": seconds / 60,
            "tokens_s": run.progress.tokens / seconds,
            "training": run.progress.loss,
            "held_out": math.log(perplexity["overall"]),
            "perplexity": perplexity["overall"],
            "by_domain": perplexity,
        }


def run(setting: Setting) -> Report:
    """Train all models, one after the other."""
    torch.manual_seed(0)
    school = School(setting)
    table = Rows(setting, "Demo models by epoch", COLUMNS)
    with TemporaryDirectory() as folder:
        for plan in plans(setting.tiny):
            table.attempt(plan.name, partial(school.train, plan, Path(folder), table))
    return table.report(
        f"Text: {school.source}; {school.n_tokens:,} tokens an epoch.",
        "Time counts compiling and measuring. The rate of learning falls to zero at the end of each model's time, so "
        "only its last row is a finished model.",
        *([] if school.compiled else ["torch.compile was not used: it does not work here, or the check is tiny."]),
    )
