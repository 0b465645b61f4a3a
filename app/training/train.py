"""``spectra train`` from its flags to a checkpoint: answers, split, training, held-out acceptance, export, report."""

from __future__ import annotations

import argparse
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from app.config.serve import ServeConfig
from app.inputs.default_model import HUB_ID, is_default
from app.inputs.models import model_path, read_checkpoint
from app.inputs.prompts import Question
from app.offline.flags import n_threads
from app.offline.setup import check_device
from app.training.acceptance import measure_held_out
from app.training.answering import answer_questions
from app.training.batches import EpochBatches, ReadTexts, compute_states
from app.training.captured import CapturedStates
from app.training.examples import Split, most_frequent, read_answers, source_of, split
from app.training.loop import LoopSettings, TrainingRun
from app.training.losses import DraftLoss, Labeller, LossSettings, published
from app.training.new_drafter import find_unused_token, new_drafter, new_spec, target_parts, usual_taps
from app.training.options import ArchitectureOptions
from app.training.report import write_report
from app.version import VERSION
from engine.drafter.checkpoint.tensors import DrafterCheckpoint
from engine.drafter.checkpoint.write import write_drafter, write_speculators
from engine.drafter.spec import DrafterSpec
from engine.model.identity import model_hash
from engine.model.spec import ModelSpec
from engine.target_model.numerics import resolve_dtype
from engine.target_model.whole_texts import WholeTexts

DECISIVE = ("rate", "seed", "batch", "roots")  # flags, in addition to shape, loss and texts
LOOP_FLAGS = ("steps", "minutes", "rate", "seed", "checkpoint_every")
LOSS_FLAGS = {"ce_weight": "cross_entropy", "depth_decay": "decay", "train_depths": "n_depths", "labels": "labels"}
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
    target, tokenizer = read_checkpoint(path)
    spec = new_spec(arguments.method, asked, path, target, find_unused_token(tokenizer, target.vocab_size))
    settings = loss_settings(arguments, spec)
    dtype, device = resolve_dtype(config.dtype, target, config.device), torch.device(config.device)
    identity = {"model": model_hash(path), "dtype": str(dtype), "quantization": config.quantization}
    longest = min(arguments.max_length, target.max_positions)
    given, measured = (
        [one for file in files for one in read_answers(file, tokenizer, target.vocab_size, flag)]
        for flag, files in (("--answers", arguments.answers), ("--measured-on", arguments.measured_on))
    )
    answers, n_own = answer_questions(arguments, config, questions, path)
    texts = split([*answers, *given], arguments.held_out, longest, measured)
    draft_ids = most_frequent(texts.train, spec.draft_vocab_size, spec.vocab_size) if asked.draft_vocab else None
    model = WholeTexts.load(path, [device], dtype, longest, config.quantization)
    network = new_drafter(spec, model, draft_ids, arguments.seed)
    read = _read_states(arguments.work, model, identity, spec, texts)
    batches = EpochBatches(texts.train, arguments.batch, arguments.seed)
    ids = None if draft_ids is None else draft_ids.to(device)
    checkpoint = arguments.out / "checkpoint.pt"
    if arguments.restart:
        checkpoint.unlink(missing_ok=True)
    with autocast_products(dtype, device):
        loss = DraftLoss(network, settings, n_roots=arguments.roots, draft_ids=ids)
        decisive = {
            **{f"target {name}": value for name, value in identity.items()},
            **{f"drafter {name}": value for name, value in asdict(spec).items()},
            **{f"loss {name}": value for name, value in asdict(settings).items()},
            **{name: getattr(arguments, name) for name in DECISIVE},
            "texts (hash)": source_of(" ".join(f"{one.first} {one.tokens_hash}" for one in texts.train)),
        }
        loop = LoopSettings(**{name: getattr(arguments, name) for name in LOOP_FLAGS}, decisive=decisive)
        n_weights = sum(weight.numel() for weight in network.parameters() if weight.requires_grad)
        counts = ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in texts.counts.items())
        print(f"texts: {counts}; {n_weights:,} weights to train", file=sys.stderr)
        progress = TrainingRun(network, loss, lambda step: read(batches.at(step)), checkpoint, loop).train()
        label = partial(Labeller, target_parts(model).head, "soft", ids, is_whole=True)
        held_out = measure_held_out(network, texts.held_out, read, label, settings.n_depths, arguments)
    tensors = {name: weight.detach().to("cpu", EXPORTED) for name, weight in network.state_dict().items()}
    _export(arguments.out, DrafterCheckpoint(spec, tensors, draft_ids, "trained"), target, config.model, model)
    files = {flag: list(map(str, getattr(arguments, flag))) for flag in ("prompts", "answers", "measured_on")}
    document = {
        "version": VERSION,
        "target": config.model,
        "target_hash": identity["model"],
        "method": arguments.method,
        "drafter": asdict(spec),
        "weights": n_weights,
        "loss_settings": asdict(settings),
        "texts": {**texts.counts, "own_questions": n_own, **files},
        "training": {
            "budget": {"minutes": arguments.minutes, "steps": arguments.steps},
            **asdict(progress),
            "tokens_per_second": progress.tokens / max(progress.seconds, 1e-9),
            "epochs": progress.steps / batches.n_batches,
            **{name: getattr(arguments, name) for name in (*DECISIVE, "max_length")},
            "device": config.device,
            "threads": n_threads(config),
            "dtype": str(dtype).removeprefix("torch."),
        },
        "held_out": held_out,
        "command": shlex.join(["spectra", *sys.argv[1:]]),
    }
    write_report(document, arguments.out)
    return document


def _export(out: Path, drafter: DrafterCheckpoint, target: ModelSpec, name: str, model: WholeTexts) -> None:
    """Write the drafter; an EAGLE 3 also in the layout that other engines load."""
    spec, public_name = drafter.spec, HUB_ID if is_default(name) else name
    write_drafter(out, drafter, target, public_name)
    if spec.method == "eagle" and spec.generation == 3:
        ids = torch.arange(spec.vocab_size) if drafter.draft_ids is None else drafter.draft_ids
        write_speculators(out / "speculators", drafter, target, public_name, model.shards[-1].head_rows(ids).cpu())


def _read_states(
    work: Path, model: WholeTexts, identity: Mapping[str, Any], spec: DrafterSpec, texts: Split
) -> ReadTexts:
    """Return what reads texts with the drafter's states: from disk, or computed if there is no room.

    The layers of EAGLE 3 are stored too, so that drafters can share them, if there is room.
    """
    for taps in dict.fromkeys((tuple(sorted({*usual_taps(model.shards[-1].spec), *spec.taps})), spec.taps)):
        stored = CapturedStates(work, model, taps, identity)
        if stored.add([*texts.train, *texts.held_out]):
            return partial(stored.read, taps=spec.taps)
    print("spectra: each training step computes states again", file=sys.stderr)
    return partial(compute_states, model, spec.taps)


def loss_settings(arguments: argparse.Namespace, spec: DrafterSpec) -> LossSettings:
    given = {name: getattr(arguments, flag) for flag, name in LOSS_FLAGS.items()}
    return replace(published(spec), **{name: value for name, value in given.items() if value is not None})


@contextmanager
def autocast_products(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Run products of float32 weights in the target's dtype."""
    # A cache would keep the first step's weights: it is emptied only when the context ends.
    is_lower = dtype != torch.float32
    with torch.autocast(device.type, dtype, is_lower, cache_enabled=False), warnings.catch_warnings():
        # Norms have float32 weights and get half precision, which is right, and slow only where they are fused.
        warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")
        yield
