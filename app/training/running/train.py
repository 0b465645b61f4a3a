"""``spectra train`` from its flags to a checkpoint: answers, split, training, measure, export."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from app.config.serve import ServeConfig
from app.inputs.models import model_path, read_checkpoint
from app.inputs.prompts import Question
from app.offline.flags import n_threads
from app.offline.setup import check_device
from app.training.data.batches import TextStream
from app.training.data.capture import Capture
from app.training.data.examples import most_frequent
from app.training.data.gathering import gather
from app.training.data.given import read_answers
from app.training.data.split import Split, split
from app.training.loop import LoopSettings, TrainingProgress, TrainingRun
from app.training.losses import DraftLoss, check_terms
from app.training.running.architecture import ArchitectureOptions, new_spec
from app.training.running.initial import new_drafter
from app.training.running.measured import measured
from app.training.running.report import write_report
from app.training.settings import LossSettings, published
from app.version import VERSION
from engine.drafter.checkpoint.tensors import DrafterCheckpoint
from engine.drafter.checkpoint.write import write_drafter
from engine.drafter.networks.build import AnyNetwork
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError
from engine.model.identity import model_hash
from engine.target_model.numerics import resolve_dtype
from engine.target_model.whole_texts import WholeTexts

CHECKPOINT, SETTINGS = "checkpoint.pt", "settings.json"


def train(
    arguments: argparse.Namespace, config: ServeConfig, asked: ArchitectureOptions, questions: Sequence[Question]
) -> dict[str, Any]:
    """Train a drafter, or go on with one; returns the document, which is also in ``--out``.

    Raises:
        ConfigError: a flag does not fit the target, or the work folder is another training's.
        UnsupportedModelError: the target cannot be run.
    """
    torch.set_num_threads(n_threads(config))
    check_device(config)
    path = model_path(config.model, config.revision)
    target, tokenizer = read_checkpoint(path)
    spec = new_spec(arguments.method, asked, path, target, mask_tokens(tokenizer, target.vocab_size))
    loss = loss_settings(arguments, spec)
    check_terms(spec, loss)
    dtype, device = resolve_dtype(config.dtype, target, config.device), torch.device(config.device)
    longest = min(arguments.max_length, target.max_positions)
    every = gather(arguments, config, questions, path, target, tokenizer)
    apart = [one for file in arguments.measured_on for one in read_answers(file, tokenizer, target.vocab_size)]
    texts = split(every, arguments.held_out, longest, apart)
    draft_ids = most_frequent(texts.train, spec.draft_vocab_size, spec.vocab_size) if asked.draft_vocab else None
    model = WholeTexts.load(path, [device], dtype, longest, config.quantization)
    network = new_drafter(spec, model, draft_ids, arguments.seed)
    capture = Capture(model, spec.taps)
    stream = TextStream(texts.train, capture, arguments.batch, arguments.seed)
    ids = None if draft_ids is None else draft_ids.to(device)
    with _precision(device, dtype):
        run = _run(arguments, config, network, DraftLoss(network, loss, n_roots=arguments.roots, draft_ids=ids), stream)
        print(f"{_words(texts)}; {_size(network):,} weights are trained", file=sys.stderr)
        progress = run.train()
        found = measured(network, texts.held_out, capture, loss.n_depths, ids, arguments)
    tensors = {name: weight.detach().to("cpu", dtype) for name, weight in network.state_dict().items()}
    write_drafter(arguments.out, DrafterCheckpoint(spec, tensors, draft_ids, "trained"), target, config.model)
    document = {
        "version": VERSION,
        "target": config.model,
        "target_hash": model_hash(path),
        "method": arguments.method,
        "out": str(arguments.out),
        "drafter": asdict(spec),
        "weights": _size(network),
        "loss_settings": asdict(loss),
        "texts": counts(texts) | sources(arguments),
        "training": _facts(arguments, progress, stream) | {"dtype": str(dtype).removeprefix("torch.")},
        "held_out": found,
        "command": shlex.join(["spectra", *sys.argv[1:]]),
    }
    write_report(document, arguments.out)
    return document


@contextmanager
def _precision(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Products of float32 weights in the target's dtype."""
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32), warnings.catch_warnings():
        # Norms get half precision and have float32 weights, which is right, and slow only where they are fused.
        warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")
        yield


def _facts(arguments: argparse.Namespace, progress: TrainingProgress, stream: TextStream) -> dict[str, Any]:
    """What the training used, and how."""
    flags = ("rate", "weight_decay", "batch", "roots", "max_length", "device", "threads", "seed")
    return {
        "budget": {"minutes": arguments.minutes, "steps": arguments.steps},
        "steps": progress.steps,
        "seconds": round(progress.seconds, 1),
        "loss": round(progress.loss, 4),
        "tokens": stream.n_tokens,
        "tokens_per_second": round(stream.n_tokens / max(progress.seconds, 1e-9), 1),
        "epochs": round(stream.epochs, 2),
        **{name: getattr(arguments, name) for name in flags},
    }


def loss_settings(arguments: argparse.Namespace, spec: DrafterSpec) -> LossSettings:
    """As published, but for what is asked.

    Raises:
        ConfigError: a value cannot be.
    """
    names = {"ce_weight": "cross_entropy", "depth_decay": "decay", "train_depths": "n_depths"}
    flags = (*names, "regression", "distance", "noise", "labels")
    given = {names.get(flag, flag): getattr(arguments, flag) for flag in flags if getattr(arguments, flag) is not None}
    return replace(published(spec), **given)


def mask_tokens(tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> list[int]:
    """Tokens that no text has, the best first: a mask, ids that the tokenizer does not use, padding, unknown, start."""
    unused = len(tokenizer) if len(tokenizer) < vocab_size else None
    ids = (
        *(tokenizer.mask_token_id, unused, tokenizer.pad_token_id, tokenizer.unk_token_id),
        tokenizer.bos_token_id,
    )
    ends = tokenizer.eos_token_id  # which some use for padding
    return [token for token in ids if token is not None and token != ends]


def _run(
    arguments: argparse.Namespace, config: ServeConfig, network: AnyNetwork, loss: DraftLoss, stream: TextStream
) -> TrainingRun:
    """The training, begun or resumed."""
    checkpoint = arguments.work / CHECKPOINT
    if arguments.restart:
        checkpoint.unlink(missing_ok=True)
    settings = LoopSettings(
        steps=arguments.steps,
        minutes=arguments.minutes,
        rate=arguments.rate,
        weight_decay=arguments.weight_decay,
        seed=arguments.seed,
        checkpoint_every=arguments.checkpoint_every,
    )
    decides = {
        **{f"drafter's {name}": value for name, value in asdict(network.spec).items()},
        **{f"loss's {name}": value for name, value in asdict(loss.settings).items()},
        **{name: getattr(arguments, name) for name in ("rate", "weight_decay", "seed", "batch", "roots")},
        "dtype": config.dtype,
    }
    _check_same(arguments.work / SETTINGS, json.loads(json.dumps(decides)), checkpoint.exists())
    return TrainingRun(network, loss, stream, checkpoint, settings)


def _check_same(file: Path, settings: dict[str, Any], resumes: bool) -> None:
    """Whether a training goes on as it began; its budget alone may change."""
    if resumes and file.exists():
        known = json.loads(file.read_text(encoding="utf-8"))
        for name, value in settings.items():
            if known.get(name) != value:
                raise ConfigError(
                    f"{file.parent} holds a training with {name} {known.get(name)!r}, not {value!r}: give the same, "
                    "another --work folder, or --restart"
                )
    file.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def counts(texts: Split) -> dict[str, int]:
    """Of texts and of tokens that the target wrote."""
    return {
        "train": len(texts.train),
        "train_tokens": sum(len(example.written) for example in texts.train),
        "held_out": len(texts.held_out),
        "held_out_tokens": sum(len(example.written) for example in texts.held_out),
        "cut_at_loops": texts.loops,
        "too_short": texts.too_short,
        "shared_with_held_out": texts.shared,
    }


def sources(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Files by kind."""
    kinds = ("prompts", "answers", "texts", "measured_on")
    return {kind: [str(path) for path in getattr(arguments, kind)] for kind in kinds}


def _words(texts: Split) -> str:
    n = counts(texts)
    return (
        f"{n['train']} texts to train on ({n['train_tokens']:,} written tokens), {n['held_out']} held out; "
        f"{n['cut_at_loops']} cut where they loop, {n['too_short']} too short, {n['shared_with_held_out']} too like a "
        "held-out one"
    )


def _size(network: AnyNetwork) -> int:
    return sum(weight.numel() for weight in network.parameters() if weight.requires_grad)
