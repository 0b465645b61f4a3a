"""Lookahead decoding (Fu et al. 2024, arXiv 2402.02057).

A two-dimensional window generates n-grams in the same forward that verifies guesses
(``speculators.ngrams.lookahead_window`` says how it becomes a token tree and where it equals the original). The n-grams
go to a pool: first token -> the ``G`` most recently seen sequences behind it. All sequences behind the context's last
token are guessed.

Beyond the original: guesses that share a prefix share nodes, guesses do not wait for a full window, and the pool also
learns the n-grams of prompt and output: that measures best (``docs/methods/lookahead.md``), so it is the default.

Nodes: ``G * (N - 1)`` guesses and ``W * (N - 1) - 1`` of the window are at most 55 at the published 5, 7, 7. With less,
guesses come first and leave ``window_share`` to the window, whose right-most columns wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView
from speculators.method import Method
from speculators.ngrams.dictionaries import ForwardDictionary, Tokens
from speculators.ngrams.lookahead_window import LookaheadWindow
from speculators.node_counter import NodeCounter
from speculators.pieces import PIECE, piece_beside

_DOUBT_FIRST = 1.0  # a single sequence behind the last token begins right about every second time
_DOUBT_DEEPER = 0.25  # a single sequence that began right goes on right four times out of five


@dataclass(frozen=True, slots=True)
class LookaheadConfig:
    """Lookahead settings; ``LookaheadConfig.paper()`` is the published method.

    Raises:
        ConfigError: a value is out of range.
    """

    level: int = 5  # N, tokens of an n-gram
    window: int = 7  # W, columns
    guesses: int = 7  # G, sequences kept per token, and guessed per step
    learn_from_prompt: bool = True  # also learn the prompt's n-grams
    learn_from_output: bool = True  # also learn the accepted output's n-grams
    guess_while_filling: bool = True  # the original waits until the window is full
    window_share: float = 0.5  # of the budget, kept free of guesses
    prompt_window: int = 8192  # last tokens of a long prompt that are learnt from
    max_keys: int = 4096  # tokens that have sequences; those seen least recently are dropped
    seed: int = 0  # of the first window, combined with the request's seed

    def __post_init__(self) -> None:
        least = {"level": 3, "window": 1, "guesses": 1, "prompt_window": 0, "max_keys": 2}
        for field, minimum in least.items():
            if getattr(self, field) < minimum:
                raise ConfigError(f"lookahead: {field} must be at least {minimum}, got {getattr(self, field)}")
        if not 0.0 <= self.window_share <= 1.0:
            raise ConfigError(f"lookahead: window_share must lie in 0..1, got {self.window_share}")

    @classmethod
    def paper(cls) -> LookaheadConfig:
        """The published method: the pool learns from the window alone."""
        return cls(learn_from_prompt=False, learn_from_output=False, guess_while_filling=False)


class _State:
    """Everything known about one request."""

    __slots__ = ("n_begin", "n_learnt", "pool", "window")

    def __init__(self, config: LookaheadConfig, view: RequestView) -> None:
        prompt = view.context.view.tolist() or [0]
        rng = Random(f"{config.seed}/{view.request.params.seed}")
        self.window = LookaheadWindow(rng.choices(prompt, k=config.window + config.level - 3), config.level)
        self.pool = ForwardDictionary(config.guesses, config.max_keys, drop_prefixes=False)
        self.n_begin = len(view.context)  # tokens of the context when the request began
        self.n_learnt = self.n_begin  # tokens of the context that are learnt

    @property
    def is_behind(self) -> bool:
        """Whether part of the prompt is still to be learnt."""
        return self.n_learnt < self.n_begin


class Lookahead:
    """Guesses from a pool of n-grams that a Jacobi window keeps filling."""

    name = "lookahead"
    needs = Needs(probe_top_k=1)

    def __init__(self, config: LookaheadConfig | None = None) -> None:
        self._config = config or LookaheadConfig()
        self._states: dict[int, _State] = {}

    def begin(self, view: RequestView) -> None:
        """Draw the first row of the window from the prompt (seeded) and, by option, begin to learn the prompt."""
        state = self._states[view.request_id] = _State(self._config, view)
        if self._config.learn_from_prompt:
            state.n_learnt -= min(state.n_learnt, self._config.prompt_window)
            self._learn_text(state, view, PIECE)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Guesses, most recent first, then the columns of the window."""
        state = self._states[view.request_id]
        if budget <= 0 or len(view.context) == 0:
            return []
        root = int(view.context.view[-1])
        counter = NodeCounter()
        guesses = self._guesses(state, root, counter, budget - self._window_nodes(state, budget))
        if state.is_behind:  # the pool would forget what the window brings sooner than older text
            return guesses
        columns = state.window.choose(root, counter, budget)
        return guesses + [Branch(path, self.name, None, True) for path in columns]

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Advance the window, then learn: its n-grams first, so that accepted text counts as more recent.

        Chunks of the prompt are observed, too: a long prompt is learnt piece by piece while the target reads it.
        """
        state = self._states[view.request_id]
        for ngram in state.window.advance(outcome):
            state.pool.add(ngram[0], ngram[1:])
        if self._config.learn_from_output or state.is_behind:
            self._learn_text(state, view, piece_beside(outcome))

    def end(self, view: RequestView) -> None:
        """Drop the request's state."""
        self._states.pop(view.request_id, None)

    def _window_nodes(self, state: _State, budget: int) -> int:
        """Nodes that guesses must leave to the window: whole columns only, at most the whole window."""
        counter = NodeCounter()
        share = int(budget * self._config.window_share)
        for path in state.window.paths:
            if not counter.add_whole(path, share):
                break
        return counter.n_nodes

    def _guesses(self, state: _State, root: int, counter: NodeCounter, limit: int) -> list[Branch]:
        """The sequences behind the last token that add a node, the last one cut to what fits."""
        branches: list[Branch] = []
        if not (state.window.is_full or self._config.guess_while_filling):
            return branches
        guesses = state.pool[root]
        scores = _scores(guesses)
        for guess in guesses:
            before = counter.n_nodes
            n_tokens = counter.add(guess, limit)
            if counter.n_nodes > before:
                kept = guess[:n_tokens]
                branches.append(Branch(kept, self.name, scores=[scores[kept[:n]] for n in range(1, n_tokens + 1)]))
            if counter.n_nodes >= limit:
                break
        return branches

    def _learn_text(self, state: _State, view: RequestView, n: int) -> None:
        """Learn the n-grams that the tokens committed since the last call complete, ``n`` at most."""
        behind = self._config.level - 1
        first = max(state.n_learnt - behind, 0)
        end = len(view.context) if self._config.learn_from_output else state.n_begin
        text: Tokens = tuple(view.context.view[first : min(end, state.n_learnt + n)].tolist())
        for key in range(len(text) - behind):
            state.pool.add(text[key], text[key + 1 : key + 1 + behind])
        state.n_learnt = first + len(text)


def _scores(guesses: Sequence[Tokens]) -> dict[Tokens, float]:
    """An estimate for every prefix: how probable its last token is once the ones before it were accepted.

    ``guesses`` most recent first. Siblings share in proportion to recency, the guess of rank ``r`` counting
    ``1 / (r + 1)``; how probable it is that any of them is right grows with the number of guesses behind the parent,
    faster behind a drafted token. The constants are measured (``docs/methods/lookahead.md``).
    """
    weights: dict[Tokens, float] = {}
    counts: dict[Tokens, int] = {}
    for rank, guess in enumerate(guesses):
        for n in range(len(guess) + 1):
            prefix = guess[:n]
            weights[prefix] = weights.get(prefix, 0.0) + 1.0 / (rank + 1)
            counts[prefix] = counts.get(prefix, 0) + 1
    scores: dict[Tokens, float] = {}
    for prefix, weight in weights.items():
        if prefix:
            above = prefix[:-1]
            doubt = _DOUBT_FIRST if not above else _DOUBT_DEEPER
            scores[prefix] = weight / weights[above] * counts[above] / (counts[above] + doubt)
    return scores


LOOKAHEAD = Method(
    name="lookahead",
    factory=lambda settings, context: Lookahead(settings),
    description="n-grams from Jacobi iteration",
    settings=LookaheadConfig,
)
