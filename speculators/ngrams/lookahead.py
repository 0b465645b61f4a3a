"""Lookahead decoding (Fu et al. 2024, arXiv 2402.02057): guesses n-grams that Jacobi iterations of the target produced.

A window generates n-grams in the same forward pass that verifies guesses. A pool maps a token to the ``G`` sequences
seen last after it, and all sequences after the context's last token are guessed. With few nodes, guesses come first and
leave ``window_share`` to the window. By default the pool also learns prompt and output, and guesses do not wait for a
full window.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from engine.protocol import Branch, Needs, Outcome, RequestView
from speculators.method import Method
from speculators.ngrams.dictionaries import ForwardDictionary, Tokens
from speculators.ngrams.lookahead_window import LookaheadWindow
from speculators.node_counter import NodeCounter
from speculators.per_request import PerRequest
from speculators.pieces import PIECE, tokens_to_learn
from speculators.settings import Settings, setting

# One sequence is right half of the time at its first token, and four times out of five after that.
_FIRST_DOUBT, _DEEPER_DOUBT = 1.0, 0.25


@dataclass(frozen=True, slots=True)
class LookaheadConfig(Settings):
    """Lookahead settings; ``LookaheadConfig.paper()`` is the published method."""

    level: int = setting(5, "tokens of an n-gram (N)", at_least=3)
    window: int = setting(7, "columns of the window (W)", at_least=1)
    guesses: int = setting(7, "sequences kept per token, and guessed per step (G)", at_least=1)
    learn_from_prompt: bool = setting(True, "learn the prompt's n-grams; the published method does not")
    learn_from_output: bool = setting(True, "learn the output's n-grams; the published method does not")
    guess_while_filling: bool = setting(True, "guess before the window is full; the published method does not")
    window_share: float = setting(0.5, "share of the nodes that guesses leave to the window", at_least=0, at_most=1)
    prompt_window: int = setting(8192, "last tokens of a long prompt that are learnt", at_least=0)
    max_keys: int = setting(4096, "tokens whose sequences are kept; the least recent are dropped", at_least=2)
    seed: int = setting(0, "seed of the first window, combined with the request's seed")

    @classmethod
    def paper(cls) -> LookaheadConfig:
        return cls(learn_from_prompt=False, learn_from_output=False, guess_while_filling=False)


@dataclass(slots=True)
class LookaheadState:
    """The window and the pool of one request, and how much of its context the pool has learnt."""

    window: LookaheadWindow
    pool: ForwardDictionary
    n_begin: int  # tokens when the request began
    n_learnt: int

    @property
    def is_learning_prompt(self) -> bool:
        return self.n_learnt < self.n_begin


class Lookahead(PerRequest[LookaheadState]):
    """Guesses from a pool of n-grams that a Jacobi window keeps filling."""

    name = "lookahead"
    needs = Needs(probe_top_k=1)

    def __init__(self, config: LookaheadConfig | None = None) -> None:
        super().__init__()
        self._config = config or LookaheadConfig()

    def new_state(self, view: RequestView) -> LookaheadState:
        config, n, prompt = self._config, len(view.context), view.context.view.tolist() or [0]
        rng = Random(f"{config.seed}/{view.request.params.seed}")
        window = LookaheadWindow(rng.choices(prompt, k=config.window + config.level - 3), config.level)
        pool = ForwardDictionary(config.guesses, config.max_keys, drop_prefixes=False)
        state = LookaheadState(window, pool, n, max(n - config.prompt_window, 0) if config.learn_from_prompt else n)
        if config.learn_from_prompt:
            self._learn_text(state, view, PIECE)
        return state

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Return guesses, most recent first, then the columns of the window."""
        state = self.states[view.request_id]
        if budget <= 0 or len(view.context) == 0:
            return []
        root = int(view.context.view[-1])
        counter, reserved = NodeCounter(), NodeCounter()  # guesses leave whole columns to the window
        share = int(budget * self._config.window_share)
        for path in state.window.paths:
            if not reserved.add_whole(path, share):
                break
        guesses = self._guesses(state, root, counter, budget - reserved.n_nodes)
        if state.is_learning_prompt:  # the window's n-grams must not become older than the prompt's
            return guesses
        columns = state.window.choose(root, counter, budget)
        return guesses + [Branch(path, self.name, None, True) for path in columns]

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Learn the window's n-grams, then the text, which counts as more recent; a prompt is learnt chunk by chunk."""
        state = self.states[view.request_id]
        for ngram in state.window.advance(outcome):
            state.pool.add(ngram[0], ngram[1:])
        if self._config.learn_from_output or state.is_learning_prompt:
            self._learn_text(state, view, tokens_to_learn(outcome))

    def _guesses(self, state: LookaheadState, root: int, counter: NodeCounter, limit: int) -> list[Branch]:
        """Return the sequences of the last token that add a node; the last one is cut to what fits."""
        guesses = state.pool[root] if state.window.is_full or self._config.guess_while_filling else []
        branches, scores = list[Branch](), _scores(guesses)
        for guess in guesses:
            n_before = counter.n_nodes
            n_fit = counter.add(guess, limit)
            if counter.n_nodes > n_before:
                kept = guess[:n_fit]
                branches.append(Branch(kept, self.name, scores=[scores[kept[:n]] for n in range(1, n_fit + 1)]))
            if counter.n_nodes >= limit:
                break
        return branches

    def _learn_text(self, state: LookaheadState, view: RequestView, n: int) -> None:
        """Learn the n-grams that end in the next ``n`` tokens of the context."""
        depth = self._config.level - 1
        first = max(state.n_learnt - depth, 0)
        end = len(view.context) if self._config.learn_from_output else state.n_begin
        text: Tokens = tuple(view.context.view[first : min(end, state.n_learnt + n)].tolist())
        for key in range(len(text) - depth):
            state.pool.add(text[key], text[key + 1 : key + 1 + depth])
        state.n_learnt = first + len(text)


def _scores(guesses: Sequence[Tokens]) -> dict[Tokens, float]:
    """Return for every prefix the probability of its last token once the others were accepted.

    The guess of rank ``r`` weighs ``1 / (r + 1)`` among its siblings. The probability that one of ``n`` siblings is
    right is ``n / (n + doubt)``.
    """
    weights: dict[Tokens, float] = defaultdict(float)
    counts: dict[Tokens, int] = defaultdict(int)
    for rank, guess in enumerate(guesses):
        for n in range(len(guess) + 1):
            weights[guess[:n]] += 1.0 / (rank + 1)
            counts[guess[:n]] += 1
    scores: dict[Tokens, float] = {}
    for prefix, weight in weights.items():
        if prefix:
            n, doubt = counts[prefix[:-1]], _DEEPER_DOUBT if len(prefix) > 1 else _FIRST_DOUBT
            scores[prefix] = weight / weights[prefix[:-1]] * n / (n + doubt)
    return scores


LOOKAHEAD = Method(
    name="lookahead",
    factory=lambda settings, context: Lookahead(settings),
    description="guesses n-grams that Jacobi iterations of the target produced",
    source="arXiv 2402.02057",
    settings=LookaheadConfig,
)
