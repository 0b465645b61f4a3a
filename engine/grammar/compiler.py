"""Compiles grammars for one tokenizer in a thread, caches them, and returns the state of a single text.

llguidance is imported with the first grammar: a process that never sees a grammar does not load it.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from engine.grammar.answer_matcher import AnswerMatcher
from engine.grammar.grammar import MOST_CHARS, Grammar, GrammarError, Thought
from engine.grammar.schemas import DECIMAL_STEP, rewrite_schemas, schema_of
from engine.grammar.shortest import ShortestTexts
from engine.grammar.state import GrammarState
from engine.grammar.thoughts import ThoughtTokens
from engine.grammar.work_limits import check_multiples, with_bounded_forcing

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

T = TypeVar("T")

MOST_KEPT = 32  # compiled grammars, of up to 25 MB
# Of one grammar:
MOST_SYMBOLS = 100_000
COMPILE_FUEL = 200_000  # regex work up to the first mask and the text that is forced from there
MASK_FUEL = 50_000  # regex work of a mask, of which a millisecond does 14,000
MASK_ITEMS = 5_000  # Earley items of a mask, of which a millisecond does 20,000
ROW_ITEMS = 500  # Earley items of a byte
LEXER_STATES = 25_000  # of up to 2 kB
LONGEST = 512  # characters of a token; at several thousand llguidance panics or never returns
STEP_REASON = "a number of at most 10 decimal places, the limit for a number with both bounds"  # for DECIMAL_STEP


class Grammars:
    """Compiles grammars for one vocabulary; thread-safe.

    Args:
        tokenizer: returns the JSON of ``tokenizer.json``; called once, for the first grammar.
        eos_ids: tokens that end a text; they are allowed once the text satisfies the grammar.
        vocab_size: width of the masks.
    """

    def __init__(self, tokenizer: Callable[[], str], eos_ids: Sequence[int], vocab_size: int) -> None:
        self._read = tokenizer
        self._eos_ids = tuple(eos_ids)
        self._vocab_size = vocab_size
        self._tokenizer: LLTokenizer | None = None
        self._marks: dict[int, bytes] = {}  # texts of added tokens
        self._texts: list[bytes] = []  # of all tokens, read with the first thought
        self._thoughts: dict[Thought, ThoughtTokens] = {}
        self._kept: OrderedDict[str, Future[AnswerMatcher]] = OrderedDict()
        self._counts: OrderedDict[str, Future[int | None]] = OrderedDict()
        self._shortest: ShortestTexts | None = None
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None

    def prepare(self, grammar: Grammar) -> Future[AnswerMatcher]:
        """Start to compile unless that has been done; the future raises GrammarError."""
        return self._run_once(self._compile, grammar, self._kept)

    def count_shortest(self, grammar: Grammar) -> Future[int | None]:
        """Start to count the tokens of the shortest answer; None: unknown. Only plain JSON schemas are counted."""
        return self._run_once(self._count_shortest, grammar, self._counts)

    def _run_once(self, run: Callable[[Grammar], T], grammar: Grammar, kept: OrderedDict[str, Future[T]]) -> Future[T]:
        key = grammar.digest
        with self._lock:
            future = kept.get(key)
            if future is None:
                if self._thread is None:
                    self._thread = ThreadPoolExecutor(1, "grammars")
                future = kept[key] = self._thread.submit(run, grammar)
                while len(kept) > MOST_KEPT:
                    kept.popitem(last=False)
            kept.move_to_end(key)
            return future

    def state(self, grammar: Grammar, tokens: Sequence[int] = ()) -> GrammarState:
        """Return the state after ``tokens`` of a text; waits until the grammar is compiled.

        The state has an ``error`` if the grammar cannot be compiled or does not allow ``tokens``.
        """
        try:
            matcher = self.prepare(grammar).result().copy()
        except GrammarError as error:
            return GrammarState(None, self._eos_ids, self._vocab_size, str(error))
        state = GrammarState(matcher, self._eos_ids, self._vocab_size)
        for token in tokens:
            state.advance(token)
        return state

    def _compile(self, grammar: Grammar) -> AnswerMatcher:
        """Return a matcher at the beginning of a text whose first masks are cached for its copies."""
        matchers = [self._compile_source(grammar.source)]
        if grammar.other_source:
            try:
                matchers.append(self._compile_source(grammar.other_source))
            except GrammarError as error:
                raise GrammarError(str(error), is_other=True) from None
        thought = None if grammar.thought is None else self._prepare_thought(grammar.thought)
        return AnswerMatcher(matchers, -(-self._vocab_size // 32), thought)

    def _compile_source(self, source: str) -> LLMatcher:
        """Return the matcher of one source, at the beginning of a text.

        Raises:
            GrammarError: the source cannot be compiled, or no text satisfies it.
        """
        from llguidance import LLMatcher

        if len(source) > MOST_CHARS:
            raise GrammarError(f"it has {len(source)} characters; it must have at most {MOST_CHARS}")
        tokenizer = self._tokenizer = self._tokenizer or self._load()
        try:
            check_multiples(source)
            written = with_bounded_forcing(rewrite_schemas(source))
        except (ValueError, OverflowError, RecursionError) as failure:
            raise GrammarError(f"its schemas cannot be read: {failure}") from None
        matcher = LLMatcher(tokenizer, written, log_level=0, limits=_limits())
        if matcher.is_error():
            raise GrammarError(_reason(matcher.get_error()))
        # A forced text that is too long uses up the fuel without an error; the mask after its last token reports it.
        ahead = matcher.deep_copy()
        ahead.consume_tokens(ahead.compute_ff_tokens())
        for each in (matcher, ahead):
            _, error = AnswerMatcher([each], -(-self._vocab_size // 32)).words()
            if error:
                raise GrammarError(f"no text can begin: {error}")
        return matcher

    def _count_shortest(self, grammar: Grammar) -> int | None:
        if grammar.thought is not None or grammar.other_source or schema_of(grammar.source) is None:
            return None
        if self._shortest is None:
            tokenizer = self._tokenizer = self._tokenizer or self._load()
            ids = (i for i in range(tokenizer.vocab_size) if not tokenizer.is_special_token(i))
            self._shortest = ShortestTexts(tokenizer.decode_bytes([i]) for i in ids)
        return self._shortest.count(grammar.source)

    def _prepare_thought(self, thought: Thought) -> ThoughtTokens:
        """Return how the tokens of this vocabulary move through a thought."""
        tokenizer = self._tokenizer
        if not self._texts and tokenizer is not None:
            self._texts = [self._marks.get(i) or tokenizer.decode_bytes([i]) for i in range(tokenizer.vocab_size)]
        if thought not in self._thoughts:
            self._thoughts[thought] = ThoughtTokens(thought, self._texts, self._eos_ids, self._vocab_size)
        return self._thoughts[thought]

    def _load(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        if not self._eos_ids:
            raise GrammarError("the model has no token that ends a text")
        try:
            document = json.loads(self._read())
            self._marks = {token["id"]: token["content"].encode() for token in document.get("added_tokens", ())}
            return LLTokenizer(_without_marks(document), eos_token=[*self._eos_ids])
        except (OSError, ValueError) as error:
            raise GrammarError(f"the model's tokenizer cannot be used with grammars: {error}") from error


def _without_marks(document: dict[str, Any]) -> str:
    """Return ``tokenizer.json`` with unmatchable texts for added tokens such as ``<tool_call>``; changes ``document``.

    llguidance treats them as special tokens, which a grammar names by id and never by text. The tokenizer, however,
    would cut a forced text into them, and then no token could follow. So the tokenizer must not know their text.
    """
    model = document.get("model", {})
    vocabulary = model.get("vocab")
    _check_lengths(vocabulary or (), document.get("added_tokens", ()))
    for token in document.get("added_tokens", ()):
        text = token["content"]
        if not (text.startswith("<") and text.endswith(">")) or text == model.get("unk_token"):
            continue
        token["content"] = f"<|mark {token['id']}|>"
        if isinstance(vocabulary, dict) and text in vocabulary:
            vocabulary[token["content"]] = vocabulary.pop(text)
        elif isinstance(vocabulary, list) and token["id"] < len(vocabulary):  # of a unigram model
            vocabulary[token["id"]][0] = token["content"]
    return json.dumps(document)


def _check_lengths(vocabulary: Iterable[Any], added: Iterable[dict[str, Any]]) -> None:
    pieces = [piece if isinstance(piece, str) else piece[0] for piece in vocabulary]  # of a unigram model: with scores
    longest = max(map(len, [*pieces, *(token["content"] for token in added)]), default=0)
    if longest > LONGEST:
        raise ValueError(f"a token of its vocabulary has {longest} characters; at most {LONGEST} are supported")


def _limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=ROW_ITEMS,
        initial_lexer_fuel=COMPILE_FUEL,
        step_lexer_fuel=MASK_FUEL,
        step_max_items=MASK_ITEMS,
        max_lexer_states=LEXER_STATES,
        max_grammar_size=MOST_SYMBOLS,
        verbose_errors=False,
    )


def _reason(message: str) -> str:
    """Return the first line of a compiler message, the pattern that fails, and the cause."""
    lines = [line.strip()[:200] for line in message.split("\n")]
    pattern = lines[1:2] if lines[0].endswith("regex parse error:") else []
    lines[0] = lines[0].replace(f"a multiple of {DECIMAL_STEP:.10f}", STEP_REASON)
    causes = [line for line in lines[1:] if line.startswith("error: ")]
    return " ".join(filter(None, [lines[0], *pattern, *causes])) or "it cannot be compiled"
