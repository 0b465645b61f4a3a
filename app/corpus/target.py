"""The target of a corpus: its description, and the scorer that runs it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from app.corpus.settings import PIECE
from app.inputs.models import model_path, read_checkpoint
from engine.errors import ConfigError, SpectraError
from engine.model.identity import model_hash, tokenizer_hash
from engine.model.resolve import is_local
from engine.model.spec import ModelSpec
from engine.target_model.numerics import resolve_dtype
from engine.target_model.whole_texts import Perplexity


@dataclass(frozen=True, slots=True)
class CorpusTarget:
    """The target of a corpus, without weights."""

    name: str  # without the path of its folder
    path: Path
    spec: ModelSpec
    tokenizer: PreTrainedTokenizerFast
    tokenizer_hash: str
    model_hash: str
    longest: int  # tokens of a piece
    start: int | None  # token before every text
    devices: list[torch.device]
    dtype: torch.dtype

    def scorer(self) -> Perplexity:
        return Perplexity.load(self.path, self.devices, self.dtype, self.longest, self.start)


def corpus_target(arguments: argparse.Namespace) -> CorpusTarget:
    """Read everything except the weights; raises ConfigError if the model and the flags do not fit each other."""
    try:
        path = model_path(arguments.model)
        spec, tokenizer = read_checkpoint(path)
        if not (path / "tokenizer.json").is_file():
            raise ConfigError(f"{path} has no tokenizer.json")
    except SpectraError as error:
        raise ConfigError(f"--model {arguments.model}: {error}") from error
    most = spec.max_positions - 1  # one position for the start token
    longest = arguments.piece_tokens or min(PIECE, most)
    if longest > most:
        raise ConfigError(f"--piece-tokens is {longest}; {arguments.model} reads at most {most} tokens")
    name = Path(arguments.model).expanduser().resolve().name if is_local(arguments.model) else arguments.model
    dtype = resolve_dtype(arguments.dtype, spec, arguments.devices[0])
    devices = [torch.device(one) for one in arguments.devices]
    if len(devices) > spec.n_layers:
        raise ConfigError(f"--device is {arguments.device}, but {name} has only {spec.n_layers} layers")
    for device in devices:
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(f"--device is {arguments.device}, but torch sees no {device} here")
    hashes, start = (tokenizer_hash(path), model_hash(path)), tokenizer.bos_token_id
    return CorpusTarget(name, path, spec, tokenizer, *hashes, longest, start, devices, dtype)
