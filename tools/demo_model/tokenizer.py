"""The demo tokenizer: byte-level BPE, 4096 tokens, digits one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<|pad|>", "<|bos|>", "<|user|>", "<|assistant|>", "<|end|>", "<|system|>")
PAD_ID, BOS_ID, ASSISTANT_ID, END_ID = 0, 1, 3, 4
ROLE_IDS = (BOS_ID, 2, ASSISTANT_ID, 5)  # after one of these the other speaker begins
VOCABULARY = 4096
MAX_POSITIONS = 4096
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(texts: Iterator[str]) -> Tokenizer:
    """Learn merges from `texts`. Encoding with special tokens puts <|bos|> in front."""
    tokenizer = Tokenizer(models.BPE())
    # Single digits make arithmetic learnable at this size: a number is always spelt the same way.
    digits = pre_tokenizers.Split(Regex(r"\d"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    bos = SPECIAL_TOKENS[BOS_ID]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, BOS_ID)]
    )
    return tokenizer


def with_template(tokenizer: Tokenizer, template: str = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """In the form of Hugging Face, chat template included."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL_TOKENS[BOS_ID],
        eos_token=SPECIAL_TOKENS[END_ID],
        pad_token=SPECIAL_TOKENS[PAD_ID],
        model_max_length=MAX_POSITIONS,
    )
    fast.chat_template = template
    return fast


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the Hugging Face files, chat template included."""
    with_template(tokenizer).save_pretrained(folder)
