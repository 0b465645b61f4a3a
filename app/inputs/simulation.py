"""Reads the profile and the recorded answers of a simulated target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from app.inputs.recordings import encode, read_logs
from app.inputs.tokenizers import load_tokenizer
from engine.errors import ConfigError
from engine.model.resolve import resolve
from engine.simulated.answers import pack_recordings
from engine.simulated.profile import PROFILES, PipelineProfile, Simulation, profile_of


def profile_at(name: str, flag: str = "--simulate") -> PipelineProfile:
    """Return the profile with a name or in a JSON file; raise ConfigError, which names ``flag``, if it is wrong."""
    if name in PROFILES:
        return PROFILES[name]
    path = Path(name).expanduser()
    if path.suffix != ".json" or not path.is_file():
        known = ", ".join(PROFILES)
        raise ConfigError(f"{flag} is {name!r}; it must be a profile ({known}) or a JSON file (.json) with one")
    try:
        return profile_of(msgspec.json.decode(path.read_bytes(), type=dict[str, Any]))
    except (OSError, msgspec.DecodeError, ConfigError) as error:
        raise ConfigError(f"{flag} {path}: {error}") from error


def simulation_of(profile: str, answers: str | None, model: str, revision: str | None = None) -> Simulation:
    """Return the options of a simulated target, with recorded answers as tokens of ``model``'s tokenizer."""
    if answers is None:
        return Simulation(profile_at(profile))
    flag = "--simulate-answers"
    tokenizer = load_tokenizer(resolve(model, revision, weights=()))
    turns = encode(tokenizer, read_logs([Path(answers).expanduser()], None, flag), flag)
    return Simulation(profile_at(profile), pack_recordings((turn.prompt, turn.answer) for turn in turns))
