"""``spectra train`` from its flags to a checkpoint: answers, split, training, held-out acceptance, export, report."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from app.config.serve import ServeConfig
from app.inputs.models import model_path, read_checkpoint
from app.inputs.prompts import Question
from app.offline.flags import n_threads
from app.offline.setup import check_device
from app.training.acceptance import measure_held_out
from app.training.answering import answer_questions
from app.training.batches import Capture, EpochBatches, PaddedTexts, ReadTexts
from app.training.captured import CapturedStates
from app.training.examples import Split, most_frequent, read_answers, source_of, split
from app.training.loop import LoopSettings, TrainingProgress, TrainingRun
from app.training.losses import DraftLoss, Labeller, LossSettings, published
from app.training.new_drafter import ArchitectureOptions, find_unused_token, new_drafter, new_spec, target_parts
from app.training.report import write_report
from app.version import VERSION
from engine.drafter.checkpoint.ids import default_taps
from engine.drafter.checkpoint.tensors import DrafterCheckpoint
from engine.drafter.checkpoint.write import write_drafter, write_speculators
from engine.drafter.networks.build import AnyNetwork
from engine.drafter.spec import DrafterSpec
from engine.errors import ConfigError
from engine.model.identity import model_hash
from engine.model.spec import ModelSpec
from engine.target_model.numerics import resolve_dtype
from engine.target_model.whole_texts import WholeTexts

CHECKPOINT, SETTINGS = "checkpoint.pt", "settings.json"
FILE_FLAGS = ("prompts", "answers", "measured_on")
EXPORTED = torch.bfloat16  # half the size; a drafter is cast to the target's dtype when it is loaded


def train(
    arguments: argparse.Namespace, config: ServeConfig, asked: ArchitectureOptions, questions: Sequence[Question]
) -> dict[str, Any]:
    """Train a drafter, or continue; returns the document, which is also written to ``--out``.

    Raises SpectraError if a flag does not fit the target, or the work folder is another training's.
    """
    torch.set_num_threads(n_threads(config))
    check_device(config)
    path = model_path(config.model, config.revision)
    (target, tokenizer), target_hash = read_checkpoint(path), model_hash(path)
    spec = new_spec(arguments.method, asked, path, target, find_unused_token(tokenizer, target.vocab_size))
    settings = loss_settings(arguments, spec)
    dtype, device = resolve_dtype(config.dtype, target, config.device), torch.device(config.device)
    longest = min(arguments.max_length, target.max_positions)
    given, measured = (
        [one for file in files for one in read_answers(file, tokenizer, target.vocab_size)]
        for files in (arguments.answers, arguments.measured_on)
    )
    answers = answer_questions(arguments, config, questions, path, tokenizer)
    texts = split([*answers, *given], arguments.held_out, longest, measured)
    draft_ids = most_frequent(texts.train, spec.draft_vocab_size, spec.vocab_size) if asked.draft_vocab else None
    model = WholeTexts.load(path, [device], dtype, longest, config.quantization)
    network = new_drafter(spec, model, draft_ids, arguments.seed)
    identity = {"model": target_hash, "dtype": str(dtype), "quantization": config.quantization}
    read = _states(CapturedStates(arguments.work, Capture(model, _taps(spec, target)), identity), spec, texts)
    batches = EpochBatches(texts.train, arguments.batch, arguments.seed)
    ids = None if draft_ids is None else draft_ids.to(device)
    with products_in(dtype, device):
        loss = DraftLoss(network, settings, n_roots=arguments.roots, draft_ids=ids)
        texts_hash = source_of(repr([(one.first, list(one.tokens)) for one in texts.train]))
        run = _start_run(arguments, config, network, loss, lambda step: read(batches.at(step)), texts_hash)
        counts = [f"{name.replace('_', ' ')} {n:,}" for name, n in _count_texts(texts).items()]
        print(f"texts: {', '.join(counts)}; {_n_weights(network):,} weights to train", file=sys.stderr)
        progress = run.train()
        label = partial(Labeller, target_parts(model).head, "soft", ids, is_whole=True)
        held_out = measure_held_out(network, texts.held_out, read, label, settings.n_depths, arguments)
    tensors = {name: weight.detach().to("cpu", EXPORTED) for name, weight in network.state_dict().items()}
    checkpoint = DrafterCheckpoint(spec, tensors, draft_ids, "trained")
    write_drafter(arguments.out, checkpoint, target, config.model)
    if spec.method == "eagle" and spec.generation == 3:
        rows = model.shards[-1].head_rows(torch.arange(spec.vocab_size) if draft_ids is None else draft_ids)
        write_speculators(arguments.out / "speculators", checkpoint, target, config.model, rows.cpu())
    files = {flag: list(map(str, getattr(arguments, flag))) for flag in FILE_FLAGS}
    document = {
        "version": VERSION,
        "target": config.model,
        "target_hash": target_hash,
        "method": arguments.method,
        "out": str(arguments.out),
        "drafter": asdict(spec),
        "weights": _n_weights(network),
        "loss_settings": asdict(settings),
        "texts": _count_texts(texts) | {"own_questions": arguments.own_questions} | files,
        "training": _describe_run(arguments, config, progress, batches) | {"dtype": str(dtype).removeprefix("torch.")},
        "held_out": held_out,
        "command": shlex.join(["spectra", *sys.argv[1:]]),
    }
    write_report(document, arguments.out)
    return document


def _taps(spec: DrafterSpec, target: ModelSpec) -> list[int]:
    """Return the layers to store: the drafter's, and those of EAGLE 3, so that drafters can share them."""
    usual = {min(max(0, tap), target.n_layers - 1) for tap in default_taps(target.n_layers)}
    return sorted(usual.union(spec.taps))


def _states(stored: CapturedStates, spec: DrafterSpec, texts: Split) -> ReadTexts:
    """Return what reads texts with the drafter's states: from disk, or computed if there is no room."""
    if stored.add([*texts.train, *texts.held_out]):
        return partial(stored.read, taps=spec.taps)
    print("spectra: the disk lacks room for states, so each step computes them again", file=sys.stderr)
    return partial(stored.compute, taps=spec.taps)


def loss_settings(arguments: argparse.Namespace, spec: DrafterSpec) -> LossSettings:
    flags = {
        "cross_entropy": arguments.ce_weight,
        "decay": arguments.depth_decay,
        "n_depths": arguments.train_depths,
        "labels": arguments.labels,
    }
    return replace(published(spec), **{name: value for name, value in flags.items() if value is not None})


@contextmanager
def products_in(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Run products of float32 weights in the target's dtype."""
    # A cache would keep the first step's weights: it is emptied only when the context ends.
    is_lower = dtype != torch.float32
    with torch.autocast(device.type, dtype, is_lower, cache_enabled=False), warnings.catch_warnings():
        # Norms have float32 weights and get half precision, which is right, and slow only where they are fused.
        warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")
        yield


def _start_run(
    arguments: argparse.Namespace,
    config: ServeConfig,
    network: AnyNetwork,
    loss: DraftLoss,
    batch: Callable[[int], PaddedTexts],
    texts_hash: str,
) -> TrainingRun:
    """The training, new or resumed; only its budget may differ from that of the resumed one."""
    checkpoint, file = arguments.out / CHECKPOINT, arguments.out / SETTINGS
    if arguments.restart:
        checkpoint.unlink(missing_ok=True)
    decisive = {
        **{f"drafter {name}": value for name, value in asdict(network.spec).items()},
        **{f"loss {name}": value for name, value in asdict(loss.settings).items()},
        **{name: getattr(arguments, name) for name in ("rate", "seed", "batch", "roots")},
        "dtype": config.dtype,
        "texts (hash)": texts_hash,
    }
    written = json.dumps(decisive, indent=1) + "\n"
    if checkpoint.exists() and file.exists():
        remedy = "use the same value, another --out folder, or --restart"
        known = json.loads(file.read_text(encoding="utf-8"))
        for name, value in json.loads(written).items():
            if known.get(name) != value:
                has = f"{arguments.out} has a training with {name} {known.get(name)!r}"
                raise ConfigError(f"{has}, not {value!r}; {remedy}")
    file.write_text(written, encoding="utf-8")
    flags = ("steps", "minutes", "rate", "checkpoint_every", "seed")
    settings = LoopSettings(**{name: getattr(arguments, name) for name in flags})
    return TrainingRun(network, loss, batch, checkpoint, settings)


def _describe_run(
    arguments: argparse.Namespace, config: ServeConfig, progress: TrainingProgress, batches: EpochBatches
) -> dict[str, Any]:
    flags = ("rate", "batch", "roots", "max_length", "seed")
    n_tokens = batches.n_tokens(progress.steps)
    return {
        "budget": {"minutes": arguments.minutes, "steps": arguments.steps},
        "steps": progress.steps,
        "seconds": round(progress.seconds, 1),
        "loss": round(progress.loss, 4),
        "curve": progress.curve,
        "tokens": n_tokens,
        "tokens_per_second": round(n_tokens / max(progress.seconds, 1e-9), 1),
        "epochs": round(progress.steps / batches.n_batches, 2),
        **{name: getattr(arguments, name) for name in flags},
        "device": config.device,
        "threads": n_threads(config),
    }


def _count_texts(texts: Split) -> dict[str, int]:
    return {
        "train": len(texts.train),
        "train_tokens": sum(len(example.written) for example in texts.train),
        "held_out": len(texts.held_out),
        "held_out_tokens": sum(len(example.written) for example in texts.held_out),
        "cut_at_loops": texts.loops,
        "too_short": texts.too_short,
        "shared_with_held_out": texts.shared,
    }


def _n_weights(network: AnyNetwork) -> int:
    return sum(weight.numel() for weight in network.parameters() if weight.requires_grad)
