"""SmolLM2-135M-Instruct's GGUF file is converted into the model that transformers loads from it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from gguf import GGUFReader
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.inputs.default_model import PACKAGE
from app.inputs.tokenizers import load_tokenizer
from engine.model.loader import load_spec
from engine.model.resolve import resolve

pytestmark = pytest.mark.cluster
PROMPTS = ["The capital of France is", "def fibonacci(n):\n    ", "In 1969, 2 of 3 astronauts"]
TEXTS = [*PROMPTS, "a  12", "x = 3.14159  # é 🙂 日本語\n\n\n\ty", "<|im_start|>user\nHi<|im_end|>\n", "don't I'LL"]


@pytest.fixture(scope="module")
def file() -> Path:
    spec = find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    (found,) = Path(spec.origin).parent.glob("*.gguf")
    return found


def test_parameters_and_greedy_tokens_are_those_that_transformers_loads(file: Path) -> None:
    ours = AutoModelForCausalLM.from_pretrained(resolve(str(file)))
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    assert ours.dtype == torch.float32
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(weight, theirs.state_dict()[name]) for name, weight in ours.state_dict().items())
    tokenizer = load_tokenizer(resolve(str(file)))
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt")
        found, expected = (model.generate(**ids, max_new_tokens=16, do_sample=False) for model in (ours, theirs))
        assert torch.equal(found, expected)


def test_texts_become_tokens_and_texts_again(file: Path) -> None:
    tokenizer = load_tokenizer(resolve(str(file)))
    theirs = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        if "  " not in text:  # of two spaces before a digit transformers splits one off
            assert ids == theirs.encode(text)
    assert tokenizer.encode("<|im_start|>user") == [1, *tokenizer.encode("user")]
    assert tokenizer.tokenize("a  12") == ["a", "ĠĠ", "1", "2"]


def test_end_and_template_are_those_of_the_file(file: Path) -> None:
    folder = resolve(str(file))
    assert load_spec(folder).eos_ids == (2,)
    template = GGUFReader(file).fields["tokenizer.chat_template"].contents()
    assert (folder / "chat_template.jinja").read_bytes() == template.encode()
