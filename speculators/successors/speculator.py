"""Drafts from one mixed model of what follows: the text's own n-grams, the target's own top probabilities, a corpus.

``suffix`` is its text part, ``token-recycling`` its target part (each at our defaults; the published algorithms are in
``speculators.ngrams.suffix`` and ``speculators.successors.token_recycling``), ``suffix+token-recycling`` is both in one
tree, where a path may go on with either. With ``+spectra-retrieval`` texts to look up are a third part of the same
tree. Three things are ours:

* successors are kept for contexts of several lengths, not for the last token alone, and mixed
  (``speculators.successors.mix``) instead of backed off;
* the tree is grown by path probability (``speculators.successors.growth``), so budgets of any size are well spent;
* where the target will draw by coupled noise (``argmax(log p + Gumbel(seed, position))``), candidates are weighed with
  that noise: the text depends on the seed alone, whatever is drafted, so the speculator may use the seed too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import permutations

import numpy as np

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.sampling.keys import request_key
from engine.sampling.params import SamplingParams
from engine.top_ids import TopIds
from engine.tree import FloatArray, IntArray
from retrieval_store.index.index import Library
from speculators.pieces import PIECE, piece_beside
from speculators.successors.corpora import FOLLOWERS, MOST, NO_CORPORA, corpora_of
from speculators.successors.growth import grow, make_growth
from speculators.successors.learning import adapt_trust, learn_prompt, learn_tree
from speculators.successors.mix import MAX_CANDIDATES, SLOTS, Model, Sampling
from speculators.successors.table import NONE, TAIL, learn_text, make_table
from speculators.successors.trusts import first_trusts
from speculators.successors.vocabulary import VocabularyRows
from speculators.tenant_state import TenantState

TEXT, TARGET, CORPUS = "suffix", "token-recycling", "spectra-retrieval"  # the sources a node can come from


@dataclass(frozen=True, slots=True)
class SuccessorConfig:
    """Settings of the mixed model.

    Memory per request: at most ``target_rows`` rows of 140 bytes at the defaults and ``text_rows`` of 44, that is 4.6
    and 1.4 MB; short texts take less.

    Raises:
        ConfigError: a value is out of range.
    """

    top_k: int = 16  # ids read back behind every node and prompt position
    target_orders: tuple[int, ...] = (1, 2, 3, 5)  # lengths of context the target's probabilities are kept for, tokens
    text_orders: tuple[int, ...] = (1, 2, 3, 4, 6, 8)  # lengths of context whose successors are counted, tokens
    corpus_orders: tuple[int, ...] = (1, 2, 3, 4, 6, 8)  # lengths of context that are looked up, tokens
    text_width: int = 4  # different successors counted per context
    target_rows: int = 32768  # contexts of all lengths, at most
    text_rows: int = 32768
    recent: int = 32  # tokens of the fallback for contexts never seen
    recent_decay: float = 0.98  # per context scored
    recent_trust: float = 0.3  # share of what no table explains that goes to recent tokens, greedy
    recent_trust_sampling: float = 1.0  # the same when the target samples
    adapt: float = 0.03  # how fast trusts follow what proves right; 0: never
    least: float = 1e-5  # path probability below which no node is drafted
    prompt_window: int = 8192  # last tokens of a long prompt that are learnt from
    shared: bool = False  # one state for all requests of a scope, instead of one per request
    prompts: int = 0  # of what is shared: states kept per scope, one for each of its latest prompts; 0: one for all

    def __post_init__(self) -> None:
        least = {
            "top_k": 1,
            "text_width": 1,
            "target_rows": 4,
            "text_rows": 4,
            "recent": 1,
            "prompt_window": 0,
            "prompts": 0,
        }
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise ConfigError(f"successors: {name} must be at least {minimum}, got {getattr(self, name)}")
        for name in ("recent_decay", "recent_trust", "recent_trust_sampling", "adapt", "least"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"successors: {name} must lie in 0..1, got {getattr(self, name)}")
        if self.recent > MAX_CANDIDATES // 2:
            raise ConfigError(f"successors: recent must be at most {MAX_CANDIDATES // 2}, got {self.recent}")
        for name in ("target_orders", "text_orders", "corpus_orders"):
            orders = getattr(self, name)
            if list(orders) != sorted(set(orders)) or not all(1 <= order <= TAIL for order in orders):
                raise ConfigError(f"successors: {name} must ascend within 1..{TAIL}, got {orders}")


_SOURCES = {
    places: tuple((TEXT, TARGET, CORPUS)[place] for place in places)
    for n in range(1, 4)
    for places in permutations(range(3), n)
}


@dataclass(slots=True)
class _State:
    """One request's part."""

    model: Model
    sampling: Sampling
    n_begin: int  # tokens of the context when the request began
    n_learnt: int  # tokens of the context that the tables know
    n_seen: int = field(default=0)  # tokens whose prediction the trusts have learnt from


class Successors:
    """The mixed model as a speculator.

    Args:
        config: settings.
        sources: ``suffix``, ``token-recycling``, ``spectra-retrieval`` in priority order; the others are left out.
        vocabulary: the target's rows behind every token, if they were read; for the target's part.
        library: of the corpus; needed with ``spectra-retrieval``.
    """

    def __init__(
        self,
        config: SuccessorConfig | None = None,
        sources: tuple[str, ...] = (TEXT, TARGET),
        vocabulary: VocabularyRows | None = None,
        library: Library | None = None,
    ) -> None:
        assert (library is not None) == (CORPUS in sources), "a library is for spectra-retrieval"
        self._config = config or SuccessorConfig()
        self.sources = sources
        self._library = library
        self.from_text = tuple(source for source in sources if source != TARGET)  # need no answers behind nodes
        self.name = "+".join(sources)
        self._vocabulary = VocabularyRows.none()
        if vocabulary is not None and TARGET in sources:
            # Copied: what came over a wire is read-only, to Numba another type, for which it would compile anew.
            self._vocabulary = vocabulary.copy()
        k = self._config.top_k if TARGET in sources else 0
        self.needs = Needs(node_top_k=k, prompt_top_k=k, top_logprobs=k > 0)
        self._states: dict[int, _State] = {}
        self._shared: TenantState[TenantState[Model]] = TenantState()  # scope -> prompt, or "" for all -> its model
        self._growth = make_growth(64)
        self._scratch = (
            np.zeros(SLOTS, np.int32),
            np.zeros(SLOTS, np.int32),
            np.zeros(1, np.int32),
            np.zeros(MAX_CANDIDATES, np.int32),
            np.zeros(MAX_CANDIDATES, np.float32),
            np.zeros(MAX_CANDIDATES, np.float32),
            np.zeros(MAX_CANDIDATES, np.float32),
            np.zeros((TAIL + 1, MOST, 2), np.int64),
            np.zeros(FOLLOWERS, np.int32),
            np.zeros(FOLLOWERS, np.float32),
        )

    catches_up = True  # an outcome it missed costs knowledge, not correctness: it reads the tokens from the context

    def begin(self, view: RequestView) -> None:
        """Begin to count the prompt's n-grams; pieces follow with its chunks, the rest with the first token."""
        n = len(view.context)
        first = max(n - self._config.prompt_window, 0)
        state = _State(self._model(view), self._sampling(view.request.params), n, first, n)
        self._states[view.request_id] = state
        self._learn_until(state, view.context.view, first + PIECE)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """One tree, most probable nodes first."""
        state = self._states[view.request_id]
        if budget > len(self._growth.tokens):
            self._growth = make_growth(budget)
        self._catch_up(state, view)
        self._look_up(state, view)
        growth = self._growth
        trust = self._config.recent_trust if view.request.params.is_greedy else self._config.recent_trust_sampling
        state.model.recent_trust[0] = trust
        n = grow(state.model, growth, view.context.view, budget, self._config.least, state.sampling)
        if n == 0:
            return []
        return [
            Branch(
                growth.tokens[:n].tolist(),
                self.name,
                growth.parents[:n].tolist(),
                scores=growth.scores[:n].tolist(),
                proposers=self._proposers(growth.text_share[:n], growth.corpus_share[:n]),
            )
        ]

    def _look_up(self, state: _State, view: RequestView) -> None:
        """Take the texts that the request may look up now: they are replaced while it runs."""
        if self._library is not None:
            corpora = corpora_of(self._library.of(view.request.namespace))
            state.model = state.model._replace(corpora=corpora, vocab=view.vocab_size)

    def _catch_up(self, state: _State, view: RequestView) -> None:
        """Count tokens that were committed while no draft was asked for."""
        context = view.context.view
        if state.n_learnt < len(context):
            self._learn_until(state, context, len(context))
            state.n_seen = len(context)

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Learn what the target said behind every node, then the committed tokens.

        Ids are copied: what came over a wire is read-only, to Numba another type, for which it would compile anew.
        """
        state, config, context = self._states[view.request_id], self._config, view.context.view
        self._look_up(state, view)
        model = state.model
        # Trusts learn from committed tokens: the tables must know the prompt before.
        end = state.n_begin if outcome.tokens else state.n_learnt + piece_beside(outcome)
        self._learn_until(state, context, min(end, state.n_begin))
        listens = TARGET in self.sources  # what is read back may be there for another part of a combination
        if listens and outcome.prompt_top_ids is not None and outcome.prompt_top_logprobs is not None:
            ids, weights = np.array(outcome.prompt_top_ids), np.exp(outcome.prompt_top_logprobs)
            learn_prompt(model, context, outcome.prompt_start, ids, weights, config.recent_decay)
        if config.adapt and state.n_seen < len(context):
            adapt_trust(model, context, state.n_seen, config.adapt)
        top = TopIds.of(outcome.top_ids)
        if listens and len(top) and top.logprobs is not None:
            tokens = np.array(outcome.tree.tokens, np.int32)
            parents = np.array(outcome.tree.parents, np.int32)
            n_before = len(context) - len(outcome.tokens)
            nodes, ids, weights = np.array(top.nodes), np.array(top.ids), np.exp(top.logprobs)
            learn_tree(model, context, n_before, tokens, parents, nodes, ids, weights, config.recent_decay)
        if state.n_learnt >= state.n_begin:
            self._learn_until(state, context, len(context))
        state.n_seen = len(context)

    @staticmethod
    def _learn_until(state: _State, context: IntArray, end: int) -> None:
        """Count the tokens up to ``end``, or to the end of the context, that are not counted yet."""
        end = min(end, len(context))
        if state.n_learnt < end:
            learn_text(state.model.text, context[:end], state.n_learnt)
            state.n_learnt = end

    def end(self, view: RequestView) -> None:
        """Drop the request's state; what is shared stays."""
        self._states.pop(view.request_id, None)

    def _proposers(self, text: FloatArray, corpus: FloatArray) -> list[tuple[str, ...]] | None:
        """The sources of each node, the one that gave it more probability first; of their shares ``[n]``."""
        if len(self.sources) == 1:
            return None
        shares = np.stack((text, 1.0 - text - corpus, corpus), 1)
        order = np.argsort(-shares, axis=1, kind="stable")
        given = (shares > 1e-6).sum(axis=1)
        return [_SOURCES[tuple(places[:n])] for places, n in zip(order.tolist(), given.tolist(), strict=True)]

    def _sampling(self, params: SamplingParams) -> Sampling:
        knows_noise = not params.is_greedy and params.verification == "coupled"
        key = request_key(params.seed, params.choice) if knows_noise else 0
        return Sampling(params.temperature, np.uint64(key))

    def _model(self, view: RequestView) -> Model:
        """The request's own model, its scope's, or its prompt's in its scope."""
        if not self._config.shared:
            return self._new_model(len(view.context) + view.request.params.max_tokens)
        config = self._config
        kept = self._shared.of(view.request.scope, lambda: TenantState(max(config.prompts, 1)))
        prompt = np.array(view.request.prompt, np.int32).tobytes() if config.prompts else b""
        model = kept.of(blake2b(prompt, digest_size=16).hexdigest(), lambda: self._new_model(config.target_rows))
        recent_ids, recent_weights = self._recent()  # a request's own: others that run beside it write of other things
        return model._replace(recent_ids=recent_ids, recent_weights=recent_weights)

    def _recent(self) -> tuple[IntArray, FloatArray]:
        """No recent tokens yet: ids and weights."""
        return np.full(self._config.recent, NONE, np.int32), np.zeros(self._config.recent, np.float32)

    def _new_model(self, n_tokens: int) -> Model:
        """An empty model with room for a text of ``n_tokens``; all models of this speculator share scratch space."""
        config = self._config
        text_orders = config.text_orders if TEXT in self.sources else ()
        target_orders = config.target_orders if TARGET in self.sources else ()
        corpus_orders = config.corpus_orders if CORPUS in self.sources else ()
        text_trust, target_trust, corpus_trust = first_trusts()
        mark, place, mix, ids, p, from_text, from_corpus, spans, followers, counts = self._scratch
        recent_ids, recent_weights = self._recent()
        return Model(
            text=make_table(min(config.text_rows, 2 * n_tokens * len(text_orders)), config.text_width, text_orders),
            target=make_table(min(config.target_rows, 64 * n_tokens * len(target_orders)), config.top_k, target_orders),
            corpora=NO_CORPORA,
            vocab=0,
            corpus_has=np.array([order in corpus_orders for order in range(TAIL + 1)], np.int32),
            text_trust=text_trust,
            target_trust=target_trust,
            vocabulary=self._vocabulary,
            corpus_trust=corpus_trust,
            recent_ids=recent_ids,
            recent_weights=recent_weights,
            recent_trust=np.zeros(1, np.float32),
            mark=mark,
            place=place,
            mix=mix,
            ids=ids,
            p=p,
            from_text=from_text,
            from_corpus=from_corpus,
            spans=spans,
            followers=followers,
            counts=counts,
        )
