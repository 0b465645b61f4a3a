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

from collections.abc import Sequence

import numpy as np

from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.top_ids import NO_TOP_IDS, TopIds
from retrieval_store.index.index import Library
from speculators.per_request import PerRequest
from speculators.pieces import PIECE, tokens_to_learn
from speculators.successors.batch import draft_steps, learn_steps
from speculators.successors.config import CORPUS, TARGET, TEXT, SuccessorConfig
from speculators.successors.corpora import corpora_of
from speculators.successors.growth import PROPOSERS, draft
from speculators.successors.learning import learn_prompt, learn_step
from speculators.successors.models import SuccessorModels
from speculators.successors.step_arrays import (
    DraftRoom,
    ModelSlots,
    StepAnswers,
    SuccessorState,
    learn_until,
    sampling_of,
)
from speculators.successors.vocabulary import VocabularyRows

_NO_WEIGHTS = np.empty((0, 0), np.float32)


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
        self._slots = ModelSlots()
        self._room = DraftRoom(1, 64)

    def new_state(self, view: RequestView) -> SuccessorState:
        n, config, params = len(view.context), self._config, view.request.params
        first = max(n - config.prompt_window, 0)
        addressed, sampling = self._models.of(view), sampling_of(params)
        trust = config.recent_trust if params.is_greedy else config.recent_trust_sampling
        slot = self._slots.take(addressed.addresses, sampling, trust)
        state = SuccessorState(addressed, slot, sampling, n, first, n, view.context.array, 0)
        state.follow(view.context.array)
        learn_until(state, view.context.view, first + PIECE)  # the rest of a long prompt follows in pieces
        return state

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        state = self.states[view.request_id]
        self._make_room(1, budget)
        self._look_up(state, view)
        tree, context, config = self._room.trees[0], view.context.view, self._config
        greedy = view.request.params.is_greedy
        state.addressed.model.recent_trust[0] = config.recent_trust if greedy else config.recent_trust_sampling
        model, room = state.addressed.addresses, self._room.addresses[0]
        n = draft(model, room, context, state.n_learnt, budget, config.least, *state.sampling)
        if state.n_learnt < len(context):  # tokens that were committed without a draft
            state.n_learnt = state.n_seen = len(context)
        if n == 0:
            return []
        grown, named = tree.grown, len(self.sources) > 1
        return [
            Branch(
                grown.tokens[:n].tolist(),
                self.name,
                grown.parents[:n].tolist(),
                scores=grown.scores[:n].tolist(),
                proposers=[PROPOSERS[i] for i in tree.proposers[:n].tolist()] if named else None,
                reach=grown.reach[1 : n + 1].tolist(),
            )
        ]

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """Return the branches of ``propose`` for several requests, in order."""
        states = [self.states[view.request_id] for view in views]
        requests: list[int] = []
        n_missed = 0
        for view, state, budget in zip(views, states, budgets, strict=True):
            if self._library is not None:
                self._look_up(state, view)
            context = view.context
            if context.array is not state.array:
                state.follow(context.array)
            n_missed += state.n_learnt < context.length
            requests += (state.address, context.length, state.slot, state.n_learnt, budget)
        if not views or (n_missed and self._config.shared):  # learning comes between the drafts
            return [*map(self.propose, views, budgets)]
        self._make_room(len(views), max(budgets))
        room, slots = self._room, self._slots
        rows = np.array(requests, np.int64).reshape(len(views), -1)
        arrays = slots.models, rows, slots.settings, slots.noise_keys, room.addresses
        n_nodes = draft_steps(*arrays, self._config.least, room.sizes, room.drafted, room.estimates)
        if n_missed:
            for view, state in zip(views, states, strict=True):
                if state.n_learnt < view.context.length:
                    state.n_learnt = state.n_seen = view.context.length
        return self._branches_of(len(views), n_nodes)

    def _branches_of(self, n_requests: int, n_nodes: int) -> list[list[Branch]]:
        """Return the trees of a step, which have ``n_nodes`` nodes together, as branches."""
        room, name, named = self._room, self.name, len(self.sources) > 1
        tokens, parents, numbers = room.drafted[:, :n_nodes].tolist()
        scores, reach = room.estimates[:, :n_nodes].tolist()
        names = [PROPOSERS[number] for number in numbers] if named else []
        drafts: list[list[Branch]] = []
        first = 0
        for n in room.sizes[:n_requests].tolist():
            part = slice(first, first + n)
            proposers = names[part] if named else None
            branch = Branch(tokens[part], name, parents[part], False, None, scores[part], proposers, reach[part])
            drafts.append([branch] if n else [])
            first += n
        return drafts

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Learn what the target said after every node, then the committed tokens.

        Ids are copied: arrays from a wire are read-only, a type that Numba would compile anew.
        """
        state, config, context = self.states[view.request_id], self._config, view.context.view
        self._look_up(state, view)
        # Trusts learn from committed tokens, so the tables must know the prompt before.
        end = state.n_begin if outcome.tokens else state.n_learnt + tokens_to_learn(outcome)
        learn_until(state, context, min(end, state.n_begin))
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

    def observe_batch(self, views: Sequence[RequestView], outcomes: Sequence[Outcome]) -> None:
        """Do what ``observe`` does for several requests, in order; those that decode take one compiled call together.

        All contexts hold the committed tokens. If it raises, no request that decodes was changed.
        """
        if len({view.request_id for view in views}) < len(views):
            for view, outcome in zip(views, outcomes, strict=True):
                self.observe(view, outcome)
            return
        states, uses_answers, answers = self.states, TARGET in self.sources, StepAnswers()
        together: list[tuple[SuccessorState, int]] = []
        alone: list[tuple[RequestView, Outcome]] = []
        for view, outcome in zip(views, outcomes, strict=True):
            state, context, n_tokens = states[view.request_id], view.context, len(outcome.tokens)
            if not n_tokens or outcome.prompt_top_ids is not None or state.n_learnt < state.n_begin:
                alone.append((view, outcome))
                continue
            n_rows = answers.add(outcome) if uses_answers else 0
            if n_rows is None:
                alone.append((view, outcome))
                continue
            if self._library is not None:
                self._look_up(state, view)
            if context.array is not state.array:
                state.follow(context.array)
            n = context.length
            together.append((state, n))
            answers.requests += (state.address, n, state.slot, state.n_learnt, state.n_seen, n_tokens, n_rows)
        if alone and self._config.shared:  # the order of writes to one table matters
            together, alone = [], [*zip(views, outcomes, strict=True)]
        arrays = answers.arrays()
        for view, outcome in alone:
            self.observe(view, outcome)
        if together:
            config, distance = self._config, 0 if self._config.shared else 1
            learn_steps(self._slots.models, *arrays, config.adapt, config.recent_decay, distance)
            for state, n in together:
                state.n_learnt = state.n_seen = n

    def end(self, view: RequestView) -> None:
        state = self.states.pop(view.request_id, None)
        if state is not None:
            self._slots.release(state.slot)
            self._models.end(state.addressed)

    def _make_room(self, n_trees: int, n_nodes: int) -> None:
        """Make room for trees of ``n_nodes`` nodes."""
        room = self._room
        if n_trees > room.n_trees or n_nodes > room.n_nodes:
            self._room = DraftRoom(max(n_trees, room.n_trees), max(n_nodes, room.n_nodes))

    def _look_up(self, state: SuccessorState, view: RequestView) -> None:
        """Set the corpora that the request may use now; they are replaced while it runs."""
        if self._library is None:
            return
        corpora, model = corpora_of(self._library.of(view.request.namespace)), state.addressed.model
        if any(new is not old for new, old in zip(corpora, model.lookup.corpora, strict=True)):
            lookup = model.lookup._replace(corpora=corpora, vocab=view.vocab_size)
            state.addressed = self._models.addressed(model._replace(lookup=lookup))
            self._slots.models[state.slot] = state.addressed.addresses
