"""What tests of several packages share: one tiny checkpoint with a tokenizer, built in code and saved once."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

# Before anything imports Ray: no token file, loopback only, no usage report, and no niceness for its workers.
os.environ |= {
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Step times measured beside other tests must not become the user's; compiled loops are kept between runs.
    "XDG_CACHE_HOME": os.path.join(tempfile.gettempdir(), f"spectra-tests-{os.getuid()}"),
}

SPECIAL = ["<|pad|>", "<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Speculation drafts tokens and the target verifies them in one step.",
    "Snow falls on the quiet town while the river keeps running.",
]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def _tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES * 3, trainer=trainer)
    backend.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|bos|>", eos_token="<|end|>")
    fast.chat_template = TEMPLATE
    return fast


def _model(vocab_size: int) -> LlamaForCausalLM:
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.3,  # wide: logits of a tiny random model must not tie within fp32 noise
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).float().eval()


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a random Llama of four layers and its byte-level tokenizer with a chat template."""
    path = tmp_path_factory.mktemp("tiny")
    tokenizer = _tokenizer()
    _model(len(tokenizer)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def pytest_configure(config: pytest.Config) -> None:
    """Works with ``-p no:xdist`` as well."""
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.import_plugin("tests.support.cluster_process")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first."""
    items.sort(key=lambda item: item.get_closest_marker("cluster") is None)
