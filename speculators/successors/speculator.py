"""Drafts from one mixed model of what follows: the text's own n-grams, the target's own probabilities, a corpus.

``suffix`` is its text part and ``token-recycling`` its target part (``mode="paper"`` selects the published algorithms).
``suffix+token-recycling`` is both in one tree, whose paths may switch between them, and ``+spectra-retrieval`` adds a
corpus. Three ideas are ours:

* successors are kept for contexts of several lengths and mixed (``speculators.successors.mix``), not backed off;
* the tree is grown by path probability (``engine.best_first.lists``), so that a budget of any size is well spent;
* where the target will draw by coupled noise (``argmax(log p + Gumbel(seed, position))``), candidates are weighed with
  that noise: the text depends on the seed alone, whatever is drafted, so a speculator may use the seed too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.sampling.keys import request_key
from engine.sampling.params import SamplingParams
from engine.top_ids import NO_TOP_IDS, TopIds
from engine.tree import IntArray
from retrieval_store.index.index import Library
from speculators.per_request import PerRequest
from speculators.pieces import PIECE, tokens_to_learn
from speculators.successors.config import CORPUS, TARGET, TEXT, SuccessorConfig
from speculators.successors.corpora import corpora_of
from speculators.successors.draws import Sampling
from speculators.successors.growth import PROPOSERS, addresses_of_tree, draft, make_successor_tree
from speculators.successors.learning import count_text, learn_prompt, learn_step
from speculators.successors.models import AddressedModel, SuccessorModels
from speculators.successors.vocabulary import VocabularyRows

_NO_WEIGHTS = np.empty((0, 0), np.float32)


@dataclass(slots=True)
class SuccessorState:
    """State of one request."""

    addressed: AddressedModel
    sampling: Sampling
    n_begin: int  # tokens of the context when the request began
    n_learnt: int  # tokens of the context that the tables have counted
    n_seen: int  # tokens whose prediction the trusts have learnt from


class Successors(PerRequest[SuccessorState]):
    """The mixed model as a speculator.

    Args:
        config: settings.
        sources: of ``suffix``, ``token-recycling`` and ``spectra-retrieval``, in priority order.
        vocabulary: the target's rows after every token, if they were read; for the target's part.
        library: the corpus; needed with ``spectra-retrieval``.
    """

    catches_up = True  # after a missed outcome it knows less, and reads the tokens from the context

    def __init__(
        self,
        config: SuccessorConfig | None = None,
        sources: tuple[str, ...] = (TEXT, TARGET),
        vocabulary: VocabularyRows | None = None,
        library: Library | None = None,
    ) -> None:
        assert (library is not None) == (CORPUS in sources), "a library is for spectra-retrieval"
        super().__init__()
        self._config = config or SuccessorConfig()
        self.sources = sources
        self._library = library
        self.from_text = tuple(source for source in sources if source != TARGET)  # these need no answers after nodes
        self.name = "+".join(sources)
        k = self._config.top_k if TARGET in sources else 0
        self.needs = Needs(node_top_k=k, prompt_top_k=k, top_logprobs=k > 0)
        self._models = SuccessorModels(self._config, sources, vocabulary)
        self._make_room(64)

    def new_state(self, view: RequestView) -> SuccessorState:
        n = len(view.context)
        first = max(n - self._config.prompt_window, 0)
        state = SuccessorState(self._models.of(view), _sampling(view.request.params), n, first, n)
        _learn_until(state, view.context.view, first + PIECE)  # the rest of a long prompt follows in pieces
        return state

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        state = self.states[view.request_id]
        if budget > len(self._tree.proposers):
            self._make_room(budget)
        self._look_up(state, view)
        grown, context, config = self._tree.grown, view.context.view, self._config
        greedy = view.request.params.is_greedy
        state.addressed.model.recent_trust[0] = config.recent_trust if greedy else config.recent_trust_sampling
        n = draft(state.addressed.addresses, self._room, context, state.n_learnt, budget, config.least, *state.sampling)
        if state.n_learnt < len(context):  # tokens that were committed without a draft
            state.n_learnt = state.n_seen = len(context)
        if n == 0:
            return []
        named = len(self.sources) > 1
        return [
            Branch(
                grown.tokens[:n].tolist(),
                self.name,
                grown.parents[:n].tolist(),
                scores=grown.scores[:n].tolist(),
                proposers=[PROPOSERS[i] for i in self._tree.proposers[:n].tolist()] if named else None,
            )
        ]

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Learn what the target said after every node, then the committed tokens.

        Ids are copied: arrays from a wire are read-only, a type that Numba would compile anew.
        """
        state, config, context = self.states[view.request_id], self._config, view.context.view
        self._look_up(state, view)
        # Trusts learn from committed tokens, so the tables must know the prompt before.
        end = state.n_begin if outcome.tokens else state.n_learnt + tokens_to_learn(outcome)
        _learn_until(state, context, min(end, state.n_begin))
        uses_answers = TARGET in self.sources  # ids may be read back for another part of a combination
        if uses_answers and outcome.prompt_top_ids is not None and outcome.prompt_top_logprobs is not None:
            ids, weights = np.array(outcome.prompt_top_ids), np.exp(outcome.prompt_top_logprobs)
            learn_prompt(state.addressed.addresses, context, outcome.prompt_start, ids, weights, config.recent_decay)
        if not outcome.tokens:
            return
        top, tree = TopIds.of(outcome.top_ids) if uses_answers else NO_TOP_IDS, outcome.tree
        weights = _NO_WEIGHTS if top.logprobs is None else np.exp(top.logprobs)
        learn_step(
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

    def end(self, view: RequestView) -> None:
        state = self.states.pop(view.request_id, None)
        if state is not None:
            self._models.end(state.addressed)

    def _make_room(self, n: int) -> None:
        """Make room for trees of ``n`` nodes."""
        self._tree = make_successor_tree(n)
        self._room = addresses_of_tree(self._tree)

    def _look_up(self, state: SuccessorState, view: RequestView) -> None:
        """Set the corpora that the request may use now; they are replaced while it runs."""
        if self._library is None:
            return
        corpora, model = corpora_of(self._library.of(view.request.namespace)), state.addressed.model
        if any(new is not old for new, old in zip(corpora, model.lookup.corpora, strict=True)):
            lookup = model.lookup._replace(corpora=corpora, vocab=view.vocab_size)
            state.addressed = self._models.addressed(model._replace(lookup=lookup))


def _learn_until(state: SuccessorState, context: IntArray, end: int) -> None:
    """Count the tokens before ``end`` that are not counted yet."""
    end = min(end, len(context))
    if state.n_learnt < end:
        count_text(state.addressed.addresses, context[:end], state.n_learnt)
        state.n_learnt = end


def _sampling(params: SamplingParams) -> Sampling:
    knows_noise = not params.is_greedy and params.verification == "coupled"
    key = request_key(params.seed, params.choice) if knows_noise else 0
    return Sampling(float(params.temperature), np.uint64(key))
