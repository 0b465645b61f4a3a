"""The target of a corpus: what a build needs to know of it, and the scorer that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from app.corpus.settings import PIECE, BuildSettings
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

    @property
    def start(self) -> int | None:
        """Token before every text, if the model has one."""
        found: int | None = self.tokenizer.bos_token_id
        return found


def corpus_target(settings: BuildSettings) -> CorpusTarget:
    """Read everything except the weights.

    Raises:
        ConfigError: the model cannot be read, has no tokenizer, or reads less than ``--piece-tokens``.
    """
    try:
        path = model_path(settings.model)
        spec, tokenizer = read_checkpoint(path)
        if not (path / "tokenizer.json").is_file():
            raise ConfigError(f"{path} has no tokenizer.json")
    except SpectraError as error:
        raise ConfigError(f"--model {settings.model}: {error}") from error
    most = spec.max_positions - 1  # one position for the start token
    longest = settings.piece_tokens or min(PIECE, most)
    if longest > most:
        raise ConfigError(f"--piece-tokens is {longest}; {settings.model} reads at most {most} tokens")
    name = Path(settings.model).expanduser().resolve().name if is_local(settings.model) else settings.model
    return CorpusTarget(name, path, spec, tokenizer, tokenizer_hash(path), model_hash(path), longest)


def scores_key(settings: BuildSettings, target: CorpusTarget) -> list[object]:
    """Everything that scores depend on except the texts."""
    dtype = str(resolve_dtype(settings.dtype, target.spec, settings.devices[0]))
    kinds = [device.partition(":")[0] for device in settings.devices]
    return [target.model_hash, target.start, dtype, kinds, settings.batch, settings.min_tokens]


def scorer(settings: BuildSettings, target: CorpusTarget) -> Perplexity:
    """Load the weights; the flags have been checked.

    Raises:
        UnsupportedModelError: the checkpoint cannot be run.
    """
    devices = [torch.device(one) for one in settings.devices]
    dtype = resolve_dtype(settings.dtype, target.spec, settings.devices[0])
    return Perplexity.load(target.path, devices, dtype, target.longest, target.start)


def check_scorer(settings: BuildSettings, target: CorpusTarget) -> None:
    """Find before reading the inputs what ``scorer`` would fail on.

    Raises:
        ConfigError: the dtype or a device does not exist, or there are more devices than layers.
    """
    resolve_dtype(settings.dtype, target.spec, settings.devices[0])
    if len(settings.devices) > target.spec.n_layers:
        raise ConfigError(f"--device is {settings.device}, but {target.name} has only {target.spec.n_layers} layers")
    for name in settings.devices:
        device = torch.device(name)
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(f"--device is {settings.device}, but torch sees no {name} here")
