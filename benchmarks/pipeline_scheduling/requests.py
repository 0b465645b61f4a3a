"""Prompts of the streams: random ones, or recorded ones whose answers decide how much speculation brings."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tqdm import tqdm

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from app.inputs.prompts import encode_chat
from app.inputs.recordings import RecordedTurn, encode, read_logs
from app.inputs.tokenizers import load_tokenizer
from app.speculation.calibration_prompts import PROMPTS
from engine.loop import Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from speculators.pool import SpeculatorPool

LEAST_ANSWER = 300  # tokens; shorter ones would measure prefills
BATCH, NODES = 16, 4  # answers that are sampled together, and drafted nodes of each: fast on a CPU


def made_up(n: int, length: int, vocab_size: int) -> list[list[int]]:
    """``n`` different random prompts of ``length`` tokens."""
    chance = random.Random(n)
    return [[chance.randrange(5, vocab_size) for _ in range(length)] for _ in range(n)]


def recorded(logs: Path, source: str | None) -> list[RecordedTurn]:
    """Long enough answers of a log, with the default model's tokenizer; one for every prompt."""
    turns = encode(load_tokenizer(model_path(DEFAULT_MODEL)), read_logs([logs], source, "--answers"), "--answers")
    long = [turn for turn in turns if len(turn.answer) >= LEAST_ANSWER and len(turn.prompt) < 512]
    return list({tuple(turn.prompt): turn for turn in reversed(long)}.values())


def sampled(n: int) -> list[RecordedTurn]:
    """Answers of the default model at temperature 0.8, for machines that have no log at hand; takes minutes."""
    model = model_path(DEFAULT_MODEL)
    tokenizer = load_tokenizer(model)
    engine = Engine(LocalTarget.load(TargetOptions(str(model)), model), SpeculatorPool())
    chats = [[{"role": "user", "content": PROMPTS[i % len(PROMPTS)]}] for i in range(n)]
    prompts = [encode_chat(tokenizer, chat) for chat in chats]
    params = [SamplingParams(max_tokens=LEAST_ANSWER, temperature=0.8, seed=i) for i in range(n)]
    jobs = [Request(*job, "suffix", NODES) for job in zip(prompts, params, strict=True)]
    done = tqdm(engine.run(jobs, BATCH), "the default model answers", n, file=sys.stderr)
    return [RecordedTurn(i, 0, prompts[i], completion.token_ids, i, "sampled") for i, completion in done]
