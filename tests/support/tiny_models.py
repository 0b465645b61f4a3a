"""Tiny models of every family and a tokenizer, built in code.

Models are cached in the process, saved checkpoints in the tests' cache folder for all processes and later runs.
"""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from app.inputs.chat_templates import SMOLLM2
from app.inputs.default_model import DEFAULT_MODEL, PACKAGE
from engine.model.matrices.experts import put_experts
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard
from engine.model.spec import read_spec

VOCAB = 97
WINDOW = 24  # tokens; prompts of the tests are longer

SPECIAL = ["<|pad|>", "<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Speculation drafts tokens and the target verifies them in one step.",
    "Snow falls on the quiet town while the river keeps running.",
]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['content'] == 'refuse me' %}{{ raise_exception('no such turn') }}"
    "{% endif %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # wide: logits of a tiny random model must not tie within fp32 noise
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


_MAKERS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_COMMON, num_key_value_heads=2)),
    "mistral": lambda: MistralForCausalLM(
        MistralConfig(**_COMMON, num_key_value_heads=1, head_dim=8, sliding_window=WINDOW)
    ),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(
            **_COMMON, num_key_value_heads=2, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2
        )
    ),
    "qwen3": lambda: Qwen3ForCausalLM(
        Qwen3Config(**_COMMON, num_key_value_heads=4, head_dim=16, tie_word_embeddings=True)
    ),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **{**_COMMON, "initializer_range": 0.1},
            num_key_value_heads=2,
            head_dim=16,
            sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention"] * 2,
            final_logit_softcapping=30.0,
            query_pre_attn_scalar=16,
        )
    ),
    "qwen3_moe": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **_COMMON,
            num_key_value_heads=2,
            head_dim=16,
            moe_intermediate_size=16,
            num_experts=8,
            num_experts_per_tok=3,
            norm_topk_prob=True,
        )
    ),
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**_COMMON, num_key_value_heads=2, sliding_window=WINDOW)),
}
FAMILIES = tuple(_MAKERS)
MIXTURES = ("qwen3_moe", "mixtral")


@cache
def tiny_model(family: str) -> Any:
    """A seeded fp32 model, cached: tests must not change it."""
    torch.manual_seed(7)
    model = _MAKERS[family]()
    # Hugging Face starts norms and biases at constants: random ones make a wrong norm or bias visible.
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, mean=0.0 if family == "gemma3" else 1.0, std=0.2)
    return model.float().eval()


@cache
def reference_tokens(family: str, prompt: tuple[int, ...], n: int, **kwargs: Any) -> list[int]:
    """Greedy output of Hugging Face's ``generate``, EOS included."""
    ids = torch.tensor([prompt])
    out = tiny_model(family).generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False, **kwargs
    )
    return out[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def random_prompt(seed: int, n: int) -> list[int]:
    """A prompt with repetitions that n-gram methods find."""
    generator = torch.Generator().manual_seed(seed)
    motif = torch.randint(3, VOCAB, (7,), generator=generator).tolist()
    tokens: list[int] = []
    while len(tokens) < n:
        tokens += torch.randint(3, VOCAB, (4,), generator=generator).tolist() + motif
    return tokens[:n]


def random_prompts(n: int, first: int = 0) -> list[list[int]]:
    """Prompts of growing length, all longer than the sliding window."""
    return [random_prompt(i, 30 + 7 * i) for i in range(first, first + n)]


@cache
def tiny_shards(family: str, n_stages: int, embeds: bool = False) -> tuple[ModelShard, ...]:
    """Shards of a copy of the tiny model, which targets share; ``embeds``: the last one has the embedding too."""
    model = copy.deepcopy(tiny_model(family))
    put_experts(model)
    spec = read_spec(model.config)
    ranges = split_layers(spec.n_layers, n_stages)
    return tuple(ModelShard(model, spec, layers, 600, embeds and layers.is_last) for layers in ranges)


@cache
def tiny_tokenizer(vocab_size: int = 320) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with a chat template that refuses the message ``refuse me``."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES * 3, trainer=trainer)
    backend.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|bos|>", eos_token="<|end|>")
    fast.chat_template = TEMPLATE
    return fast


@cache
def saved_model(family: str) -> Path:
    """Folder of the saved tiny model of a family, without a tokenizer."""
    return _saved(family, lambda folder: tiny_model(family).save_pretrained(folder))


@cache
def saved_checkpoint(vocab_size: int = 320) -> Path:
    """Folder of a random Llama of four layers and its tokenizer, which differs with the size of its vocabulary."""
    return _saved(f"checkpoint-{vocab_size}", lambda folder: _save_checkpoint(folder, vocab_size))


@cache
def saved_family(family: str) -> Path:
    """Folder of a random model of a family, with a tokenizer of as many tokens."""

    def save(folder: Path) -> None:
        config, tokenizer = copy.deepcopy(tiny_model(family).config), tiny_tokenizer()
        config.vocab_size = len(tokenizer)
        torch.manual_seed(7)
        type(tiny_model(family))(config).float().save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return _saved(f"family-{family}", save)


def _save_checkpoint(folder: Path, vocab_size: int) -> None:
    tokenizer = tiny_tokenizer(vocab_size)
    _random_llama(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _random_llama(vocab_size: int) -> LlamaForCausalLM:
    torch.manual_seed(7)
    config = {**_COMMON, "vocab_size": vocab_size, "max_position_embeddings": 4096}
    return LlamaForCausalLM(LlamaConfig(**config, num_key_value_heads=2)).float().eval()


@cache
def tiny_default_model() -> Path:
    """Folder for PYTHONPATH with which the default model is a random one that writes words and quotation marks."""
    return _saved("default-model", _save_default_model)


def _save_default_model(folder: Path) -> None:
    tokenizer = copy.deepcopy(tiny_tokenizer())
    tokenizer.chat_template = SMOLLM2
    model = _random_llama(len(tokenizer))
    ids = tokenizer.get_vocab()
    words = [ids[token] for token in ids if len(token) > 1 and token not in SPECIAL]
    with torch.no_grad():  # hidden dimension 0 is positive whatever is read, and keeps the logits of other tokens low
        model.model.embed_tokens.weight[:, 0] = 1
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = layer.mlp.down_proj.weight[0] = 0
        model.lm_head.weight[:, 0] = -1000
        model.lm_head.weight[[*words, ids['"']], 0] = 0
    package = folder / PACKAGE
    model.save_pretrained(package / DEFAULT_MODEL)
    tokenizer.save_pretrained(package / DEFAULT_MODEL)
    (package / "__init__.py").touch()


def _saved(name: str, save: Callable[[Path], object]) -> Path:
    """A folder that ``save`` fills unless this or another process has done so before."""
    version = hashlib.sha256(Path(__file__).read_bytes() + transformers.__version__.encode()).hexdigest()[:12]
    root = Path(os.environ["XDG_CACHE_HOME"]) / "models" / version
    if not (root / name).is_dir():
        root.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=root))
        save(unfinished)
        try:
            unfinished.rename(root / name)
        except OSError:  # another process was faster
            shutil.rmtree(unfinished)
    return root / name
