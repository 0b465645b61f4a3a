"""The last stage's answer to a step: logits where they are needed, walks, read-backs.

It is planned with the step, so its arrays travel in the step's one upload; its tensors are fetched in one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.cuda.plan.answer import MOST_BEST
from engine.device import fetch
from engine.grammar.compiler import Grammars
from engine.grammar.state import GrammarState
from engine.model.shard import ModelShard
from engine.sampling.history import History
from engine.stage.answer_sources import KernelAnswerSource, LogitUses, TorchAnswerSource
from engine.stage.artefacts import StatesReadBack
from engine.stage.base import Activations
from engine.stage.logit_readback import PromptLogprobs, ReadBack
from engine.stage.logit_rows import HeadRows, logit_rows
from engine.stage.packing import Span
from engine.step import SequenceStart, Work, WorkResult
from engine.tree import EMPTY_TREE
from engine.upload import Upload
from engine.verify.batch import Verification
from engine.verify.walk import Walk, WalkItem

if TYPE_CHECKING:  # needs Triton
    from engine.cuda.answers import LogitsReader


@dataclass(slots=True)
class StageSequence:
    """A sequence as its stage knows it."""

    start: SequenceStart
    text: list[int]  # copied tokens and chunks so far, kept only until the first draw
    history: History | None = None  # last stage only, and only if penalties or a minimum length need it
    grammar: GrammarState | None = None  # last stage only, and only of a request with a grammar
    draws: bool = False  # the first token was drawn: histories and grammars follow the walks from there

    def remember(self, work: Work, grammars: Grammars | None) -> None:
        """Keep the text that penalties, a minimum length and a grammar read; the walk adds the tokens that it commits.

        ``grammars`` compiles the grammar, unless it has been compiled since ``Stage.admit``.
        """
        params = self.start.params
        if self.draws or not params.needs_text:
            return
        self.text += work.tokens
        if work.draw:
            prompt, output = self.text[: self.start.n_prompt], self.text[self.start.n_prompt :]
            self.history = History(prompt, output) if params.remembers else None
            if params.grammar is not None:
                assert grammars is not None, "requests with a grammar are refused where the target has no tokenizer"
                self.grammar = grammars.state(params.grammar, output)
            self.draws, self.text = True, []

    def walk_item(self, work: Work, root: int) -> WalkItem:
        """Return the item to walk; ``root`` is the row of the tree's root, or of the chunk's last token."""
        context, tree = work.n_cached + len(work.tokens), work.tree or EMPTY_TREE
        return WalkItem(tree, root, self.start.params, self.history, context, work.max_new, self.grammar)


class StepAnswer:
    """Plans one step's answer, then returns it: by the kernels of an executor if they can answer it, else by torch.

    Args:
        works: of the step.
        spans: rows of every work.
        sequences: of every work; they remember its text.
        upload: carries the plan to the device; send it before ``results``.
        shard: has the head.
        kernels: of the stage's executor; None: it has none.
        grammars: of the model; None: no sequence has one.
    """

    def __init__(
        self,
        works: Sequence[Work],
        spans: Sequence[Span],
        sequences: Sequence[StageSequence],
        upload: Upload,
        shard: ModelShard,
        kernels: LogitsReader | None,
        grammars: Grammars | None,
    ) -> None:
        self._works = works
        head = shard.logits if kernels is None else kernels.logits
        if kernels is not None and not all(_most_ids(sequence.start) <= MOST_BEST for sequence in sequences):
            kernels = None
        needs = [sequence.start.needs for sequence in sequences]
        needed = [logit_rows(work, need) for work, need in zip(works, needs, strict=True)]
        rows = HeadRows(works, spans, needed, has_prompts_apart=kernels is not None)
        items: list[WalkItem] = []
        for work, root, sequence in zip(works, rows.roots, sequences, strict=True):
            sequence.remember(work, grammars)
            if work.draw:
                items.append(sequence.walk_item(work, root))
        vocab = shard.spec.vocab_size if kernels is None else kernels.vocab
        torch_upload = upload if kernels is None else None
        ks = [sequence.start.params.prompt_logprobs or 0 for sequence in sequences]
        uses = LogitUses(
            Verification(items, vocab, upload, has_kernels=kernels is not None),
            ReadBack(works, needs, needed, rows.firsts, torch_upload),
            PromptLogprobs(works, ks, rows.firsts, vocab, torch_upload),
        )
        self._source: TorchAnswerSource | KernelAnswerSource
        if kernels is None:
            self._source = TorchAnswerSource(rows, sum(span.n for span in spans), uses, upload, head)
        else:
            self._source = KernelAnswerSource(rows, uses, upload, kernels)
        self._states = StatesReadBack(works, needs, spans)

    def results(self, activations: Activations) -> list[WorkResult]:
        """Return the answer to every work, in order."""
        begun = self._source.begin(activations.hidden[0])
        # The host waits here. Later it waits only for levels of the rejection rule, and for states chosen by walks.
        arrays = iter(fetch([*begun, *self._states.begin(activations.tapped)]))
        found, tops, of_prompts = self._source.finish(arrays)
        drawn = iter(found)
        walks = [next(drawn) if work.draw else Walk() for work in self._works]
        states = self._states.finish(arrays, walks)
        return [
            WorkResult(
                work.seq,
                walk.tokens,
                walk.accepted,
                walk.logprobs,
                top.nodes,
                top.prompt_ids,
                hidden,
                prompt_top_logprobs=top.prompt_logprobs,
                prompt_logprobs=prompt,
                error=walk.error,
            )
            for work, walk, top, prompt, hidden in zip(self._works, walks, tops, of_prompts, states, strict=True)
        ]


def _most_ids(start: SequenceStart) -> int:
    """Return the largest number of best ids that a sequence reads from a row."""
    needs, params = start.needs, start.params
    top_k = max(needs.node_top_k, needs.probe_top_k, needs.prompt_top_k)
    return max(top_k, params.logprobs or 0, params.prompt_logprobs or 0)
