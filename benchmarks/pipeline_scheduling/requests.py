"""Prompts of the streams: random ones, or recorded ones whose answers decide how much speculation brings."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tqdm import tqdm

from app.demo.paths import DEMO_TARGET
from app.inputs.prompts import encode_chat
from app.inputs.recordings import Recorded, encode, read_logs
from app.inputs.tokenizers import load_tokenizer
from app.speculation.calibration_prompts import PROMPTS
from engine.loop import Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.target.local import LocalTarget
from engine.target.options import TargetOptions
from speculators.pool import SpeculatorPool

LEAST_ANSWER = 300  # tokens; shorter ones would measure prefills


def made_up(n: int, length: int, vocab_size: int) -> list[list[int]]:
    """``n`` different random prompts of ``length`` tokens."""
    chance = random.Random(n)
    return [[chance.randrange(5, vocab_size) for _ in range(length)] for _ in range(n)]


def recorded(logs: Path, source: str | None) -> list[Recorded]:
    """Long enough answers of a log, with the demo tokenizer; one for every prompt."""
    turns = encode(load_tokenizer(DEMO_TARGET), read_logs([logs], source, "--answers"), "--answers")
    long = [turn for turn in turns if len(turn.answer) >= LEAST_ANSWER and len(turn.prompt) < 512]
    return list({tuple(turn.prompt): turn for turn in reversed(long)}.values())


def sampled(n: int) -> list[Recorded]:
    """Answers of the demo model at temperature 0.8, for machines that have no log at hand; takes a minute."""
    tokenizer, engine = (
        load_tokenizer(DEMO_TARGET),
        Engine(LocalTarget.load(TargetOptions(str(DEMO_TARGET)), DEMO_TARGET), SpeculatorPool()),
    )
    turns = []
    for i in tqdm(range(n), desc="the demo model answers", file=sys.stderr):
        prompt = encode_chat(tokenizer, [{"role": "user", "content": PROMPTS[i % len(PROMPTS)]}])
        params = SamplingParams(max_tokens=LEAST_ANSWER, temperature=0.8, seed=i)
        turns.append(Recorded(i, 0, prompt, engine.complete(Request(prompt, params, "suffix")).token_ids, i, "demo"))
    return turns
