"""Processes that run no model start without torch: router, target replica, ingress, builder, ``spectra serve``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from app.config.serve import ServeConfig
from app.inputs.tokenizers import load_tokenizer
from app.serving.preflight import check_model

ROOT = Path(__file__).parents[2]
CODE = """
import sys
from pathlib import Path
import deployments.answers.deployment
import deployments.router.deployment
import deployments.target_model.deployment
from app.composition.checks import checked
from app.composition.pipeline import pipeline_options, router_options, target_options
from app.composition.retrieval import library
from app.composition.speculation import placement, speculator_options
from app.config.serve import ServeConfig
from deployments.pipeline.frames import encode_step_frame
from engine.model.resolve import resolve
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.batching_policy import BatchingPolicy
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence
from speculators.pool import SpeculatorPool
from tests.support.virtual_pipeline import INFO

config = checked(ServeConfig(model=sys.argv[1], method="auto", kv_gib=0.01, stages=2))
target, pipeline = target_options(config), pipeline_options(config)
assert router_options(config) and placement(config)
assert library(checked(ServeConfig(model=sys.argv[1], draft_model=sys.argv[1], retrieval="builtin")))
assert deployments.target_model.deployment.replica_placement(pipeline, target, 0.1)
assert resolve(target.model).is_dir()
pool = SpeculatorPool(speculator_options(config))
scheduler = Scheduler(BatchingPolicy(INFO, router_options(config).scheduler))
for seq, method in enumerate(("auto", "pld", "anpd", "lookahead", "spectra-core", "suffix", "token-recycling")):
    params = SamplingParams(max_tokens=8)
    pool.begin(seq, Request([5, 6, 7, 5, 6], params, method), INFO.spec.vocab_size)
    assert pool.advance([], {seq: 4}) is not None
scheduler.submit(Sequence.of(9, Request([5, 6, 7], params, max_nodes=4)))
assert encode_step_frame(scheduler.next_step(1, 0))

import app.serving.server
from app.builder import application
from app.serving.preflight import check_model
check_model(config, is_local=True)  # as it passed the checks before
assert application(config)
assert not {"torch", "transformers", "accelerate", "safetensors"} & set(sys.modules)

import app.api.edge
tokenizer = app.api.edge.load_tokenizer(Path(sys.argv[1]))
assert tokenizer.decode(tokenizer.encode("a b", add_special_tokens=False)) == "a b"
assert "torch" not in sys.modules
"""


@pytest.mark.cluster
def test_processes_that_run_no_model_do_not_load_torch(tiny_checkpoint: Path) -> None:
    check_model(ServeConfig(model=str(tiny_checkpoint)), is_local=True)
    done = subprocess.run([sys.executable, "-c", CODE, str(tiny_checkpoint)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_generic_tokenizer_is_the_one_that_transformers_chooses(tiny_checkpoint: Path) -> None:
    ours, theirs = load_tokenizer(tiny_checkpoint), AutoTokenizer.from_pretrained(tiny_checkpoint)
    assert type(ours) is type(theirs)
    assert ours.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()
    assert ours.chat_template == theirs.chat_template
    assert ours.special_tokens_map == theirs.special_tokens_map
