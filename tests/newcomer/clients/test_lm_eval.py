"""lm-eval scores answers with the log-probabilities of Hugging Face, and gets the texts that plain HTTP gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.inputs.default_model import DEFAULT_MODEL, PACKAGE
from tests.newcomer.clients.conftest import run
from tests.support.server_process import SpectraServer
from tests.support.tiny_models import tiny_default_model

pytestmark = pytest.mark.matrix

QUESTIONS = {"2 plus 2 is": (" 4", " 5"), "The sky is": (" blue", " green"), "Snow is": (" cold", " hot")}
MOST = 12  # tokens
COMMON = """\
dataset_path: json
dataset_kwargs: {data_files: FILE}
test_split: train
doc_to_text: "{{question}}"
target_delimiter: ""
"""
CHOICES = """\
task: choices
output_type: multiple_choice
doc_to_choice: "{{choices}}"
doc_to_target: 0
metric_list: [{metric: acc}]
"""
TEXTS = f"""\
task: texts
output_type: generate_until
doc_to_target: "{{{{choices[0]}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: {MOST}, temperature: 0}}
metric_list: [{{metric: exact_match}}]
"""


def samples(folder: Path, task: str) -> list[Any]:
    """Return what lm-eval got for every question of a task."""
    [file] = folder.glob(f"*/samples_{task}_*.jsonl")
    found = sorted(map(json.loads, file.read_text().splitlines()), key=lambda sample: int(sample["doc_id"]))
    return [sample["filtered_resps"] for sample in found]


def test_lm_eval_gets_the_log_probabilities_and_texts(server: SpectraServer, tmp_path: Path) -> None:
    model = tiny_default_model() / PACKAGE / DEFAULT_MODEL
    documents = tmp_path / "documents.jsonl"
    documents.write_text("".join(json.dumps({"question": q, "choices": c}) + "\n" for q, c in QUESTIONS.items()))
    for name, task in (("choices", CHOICES), ("texts", TEXTS)):
        (tmp_path / f"{name}.yaml").write_text(COMMON.replace("FILE", str(documents)) + task)
    run(
        "lm-eval", "lm_eval", "run", "--model", "local-completions", "--model_args",
        f"model={DEFAULT_MODEL},base_url={server.base}/v1/completions,tokenizer_backend=huggingface,tokenizer={model},"
        "num_concurrent=2,max_retries=1",
        "--include_path", tmp_path, "--tasks", "choices", "texts", "--output_path", tmp_path / "out", "--log_samples",
    )  # fmt: skip
    tokenizer, oracle = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)
    found = zip(samples(tmp_path / "out", "choices"), samples(tmp_path / "out", "texts"), strict=True)
    for (question, choices), (scores, [text]) in zip(QUESTIONS.items(), found, strict=True):
        prompt = tokenizer(question, add_special_tokens=False).input_ids
        for choice, (score, _) in zip(choices, scores, strict=True):
            ids = torch.tensor([tokenizer(question + choice, add_special_tokens=False).input_ids])
            with torch.no_grad():
                logprobs = oracle(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])
            assert float(score) == pytest.approx(logprobs[len(prompt) - 1 :].sum().item(), rel=1e-4)
        fields = {"model": DEFAULT_MODEL, "prompt": prompt, "max_tokens": MOST, "stop": "\n", "temperature": 0}
        assert text == server.http.post("/v1/completions", json=fields).json()["choices"][0]["text"]
