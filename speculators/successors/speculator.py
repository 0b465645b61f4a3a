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

import numpy as np

from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.sampling.keys import request_key
from engine.sampling.params import SamplingParams
from engine.top_ids import NO_TOP_IDS, TopIds
from engine.tree import IntArray
from retrieval_store.index.index import Library
from speculators.pieces import PIECE, piece_beside
from speculators.successors.calls import (
    PROPOSERS,
    addresses_of_growth,
    count,
    draft,
    learn,
    read_prompt,
)
from speculators.successors.config import CORPUS, TARGET, TEXT, SuccessorConfig
from speculators.successors.corpora import corpora_of
from speculators.successors.draws import Sampling
from speculators.successors.growth import make_growth
from speculators.successors.models import Addressed, Models
from speculators.successors.vocabulary import VocabularyRows

_NO_WEIGHTS = np.empty((0, 0), np.float32)


@dataclass(slots=True)
class _State:
    """One request's part."""

    addressed: Addressed
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
        k = self._config.top_k if TARGET in sources else 0
        self.needs = Needs(node_top_k=k, prompt_top_k=k, top_logprobs=k > 0)
        self._states: dict[int, _State] = {}
        self._is_alone = len(sources) == 1
        self._models = Models(self._config, sources, vocabulary)
        self._make_room(64)

    catches_up = True  # an outcome it missed costs knowledge, not correctness: it reads the tokens from the context

    def begin(self, view: RequestView) -> None:
        """Begin to count the prompt's n-grams; pieces follow with its chunks, the rest with the first token."""
        n = len(view.context)
        first = max(n - self._config.prompt_window, 0)
        state = _State(self._models.of(view), self._sampling(view.request.params), n, first, n)
        self._states[view.request_id] = state
        self._learn_until(state, view.context.view, first + PIECE)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """One tree, most probable nodes first."""
        state = self._states[view.request_id]
        if budget > len(self._growth.tokens):
            self._make_room(budget)
        self._look_up(state, view)
        growth, context, config = self._growth, view.context.view, self._config
        greedy = view.request.params.is_greedy
        state.addressed.model.recent_trust[0] = config.recent_trust if greedy else config.recent_trust_sampling
        n = draft(state.addressed.addresses, self._room, context, state.n_learnt, budget, config.least, *state.sampling)
        if state.n_learnt < len(context):  # tokens that were committed while no draft was asked for
            state.n_learnt = state.n_seen = len(context)
        if n == 0:
            return []
        return [
            Branch(
                growth.tokens[:n].tolist(),
                self.name,
                growth.parents[:n].tolist(),
                scores=growth.scores[:n].tolist(),
                proposers=None if self._is_alone else [PROPOSERS[i] for i in growth.proposers[:n].tolist()],
            )
        ]

    def _make_room(self, n: int) -> None:
        """For trees of ``n`` nodes."""
        self._growth = make_growth(n)
        self._room = addresses_of_growth(self._growth)

    def _look_up(self, state: _State, view: RequestView) -> None:
        """Take the texts that the request may look up now: they are replaced while it runs."""
        if self._library is None:
            return
        corpora, model = corpora_of(self._library.of(view.request.namespace)), state.addressed.model
        if any(new is not old for new, old in zip(corpora, model.lookup.corpora, strict=True)):
            lookup = model.lookup._replace(corpora=corpora, vocab=view.vocab_size)
            state.addressed = self._models.addressed(model._replace(lookup=lookup))

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Learn what the target said behind every node, then the committed tokens.

        Ids are copied: what came over a wire is read-only, to Numba another type, for which it would compile anew.
        """
        state, config, context = self._states[view.request_id], self._config, view.context.view
        self._look_up(state, view)
        # Trusts learn from committed tokens: the tables must know the prompt before.
        end = state.n_begin if outcome.tokens else state.n_learnt + piece_beside(outcome)
        self._learn_until(state, context, min(end, state.n_begin))
        listens = TARGET in self.sources  # what is read back may be there for another part of a combination
        if listens and outcome.prompt_top_ids is not None and outcome.prompt_top_logprobs is not None:
            ids, weights = np.array(outcome.prompt_top_ids), np.exp(outcome.prompt_top_logprobs)
            read_prompt(state.addressed.addresses, context, outcome.prompt_start, ids, weights, config.recent_decay)
        if not outcome.tokens:
            return
        top, tree = TopIds.of(outcome.top_ids) if listens else NO_TOP_IDS, outcome.tree
        weights = _NO_WEIGHTS if top.logprobs is None else np.exp(top.logprobs)
        learn(
            state.addressed.addresses,
            context,
            state.n_seen,
            config.adapt,
            len(context) - len(outcome.tokens),
            np.array(tree.tokens, np.int32),
            np.array(tree.parents, np.int32),
            np.array(top.nodes[: len(weights)]),
            np.array(top.ids),
            weights,
            config.recent_decay,
            state.n_learnt,
        )
        state.n_learnt = state.n_seen = len(context)

    @staticmethod
    def _learn_until(state: _State, context: IntArray, end: int) -> None:
        """Count the tokens up to ``end``, or to the end of the context, that are not counted yet."""
        end = min(end, len(context))
        if state.n_learnt < end:
            count(state.addressed.addresses, context[:end], state.n_learnt)
            state.n_learnt = end

    def end(self, view: RequestView) -> None:
        """Drop the request's state; what is shared stays."""
        state = self._states.pop(view.request_id, None)
        if state is not None:
            self._models.end(state.addressed)

    def _sampling(self, params: SamplingParams) -> Sampling:
        knows_noise = not params.is_greedy and params.verification == "coupled"
        key = request_key(params.seed, params.choice) if knows_noise else 0
        return Sampling(float(params.temperature), np.uint64(key))
