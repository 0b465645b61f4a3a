"""The tokenizer of the small world: byte-level BPE in which a word has the same pieces with and without a space.

Copying is what the world is made of. In usual byte-level BPE " price" and "price" share no piece, so that a name in a
sentence has to be translated before it can be written into code. Here merges are learnt on words without their
spaces; a space joins whole words alone, and only those that the templates use often, never fillers.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tools.demo_model import tokenizer as demo_model
from tools.demo_model.tokenizer import BOS_ID, SPECIAL_TOKENS, VOCABULARY
from tools.demo_world.draw import Pool
from tools.demo_world.example import Example
from tools.demo_world.fillers import code_names, people, things

TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
SPACED = 450  # words that get a token with their space
SPACE = "Ġ"  # as byte-level BPE spells it
REST = r"\p{N}| ?[^\s\p{L}\p{N}]+| +|\s"
WORDS_APART = rf"\n *|\p{{L}}+|{REST}"
CHAT_TEMPLATE = """\
{{- bos_token }}
{%- set system = messages[0].content if messages and messages[0].role == 'system' else '' %}
{%- if system or tools %}
{{- '<|system|>' + system }}
{%- if tools %}
{{- ('\n' if system else '') + 'Tools:' }}
{%- for tool in tools %}{{ '\n' + ((tool.function or tool) | tojson) }}{% endfor %}
{%- endif %}
{{- '<|end|>' }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '<|user|><tool_response>\n' + m.content + '\n</tool_response><|end|>' }}
{%- elif m.role != 'system' or not loop.first %}
{{- '<|' + m.role + '|>' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}
{%- set f = call.function or call %}
{{- '\n' if m.content or not loop.first }}
{{- '<tool_call>\n{"name": ' + (f.name | tojson) + ', "arguments": ' }}
{{- (f.arguments if f.arguments is string else f.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""


def plain_text(example: Example) -> str:
    """Everything that is said in a conversation, tools as the template writes them."""
    tools = [json.dumps(tool["function"]) for tool in example.tools]
    return "\n".join([*tools, *(message["content"] for message in example.messages)])


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learn merges from `texts`, which hold no special tokens. Encoding with them puts <|bos|> in front."""
    kept = list(texts)
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = split_at(WORDS_APART)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - SPACED - len(TAGS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator(kept, trainer=trainer)
    learnt = json.loads(learner.to_str())["model"]
    vocabulary: dict[str, int] = learnt["vocab"]
    merges = [tuple(merge) for merge in learnt["merges"]]
    for word in frequent_words(kept, vocabulary)[:SPACED]:
        vocabulary[SPACE + word] = len(vocabulary)
        merges.append((SPACE, word))
    return finished(vocabulary, merges)


def finished(vocabulary: dict[str, int], merges: list[Any]) -> Tokenizer:
    """The tokenizer of these merges, with its special tokens and tags."""
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    spaced = [word.removeprefix(SPACE) for word in vocabulary if re.fullmatch(f"{SPACE}[A-Za-z]+", word)]
    # Whole words: where " or" were a piece of " orange", that and "orange" would share none.
    tokenizer.pre_tokenizer = split_at(rf"\n *| (?:{'|'.join(spaced)})(?!\p{{L}})|\p{{L}}+|{REST}")
    tokenizer.decoder = decoders.ByteLevel()
    bos = SPECIAL_TOKENS[BOS_ID]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, BOS_ID)]
    )
    return tokenizer


def split_at(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Pieces that match `pattern`, as bytes."""
    pieces = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([pieces, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def frequent_words(texts: Iterable[str], vocabulary: dict[str, int]) -> list[str]:
    """Words of one token that follow a space, the most frequent first; fillers are left out, but not
    the article "a", which is the name of a variable as well.
    """
    fillers = {
        word
        for module in (code_names, people, things)
        for pool in vars(module).values()
        if isinstance(pool, Pool)
        for word in pool.words
    }
    found = Counter(word for text in texts for word in re.findall(r" ([A-Za-z]+)", text))
    return [w for w, _ in found.most_common() if w in vocabulary and (w not in fillers or w == "a")]


def with_template(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """In the form of Hugging Face, the small world's chat template included."""
    return demo_model.with_template(tokenizer, CHAT_TEMPLATE)


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the Hugging Face files."""
    with_template(tokenizer).save_pretrained(folder)
