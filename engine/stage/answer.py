"""What the last stage makes of a step behind its layers: logits where they are needed, walks, read-backs.

Planned with the step, so that the device hears of it in the step's one upload; what it answers is fetched in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.device import fetch
from engine.events import TokenLogprob
from engine.grammar.compiler import Grammars
from engine.grammar.state import GrammarState
from engine.sampling.history import History
from engine.stage.artefacts import StatesReadBack
from engine.stage.base import Activations
from engine.stage.logit_readback import ReadBack, TopRows, logit_rows
from engine.stage.packing import Span
from engine.stage.prompt_logprobs import PromptLogprobs
from engine.step import SequenceStart, Work, WorkResult
from engine.tree import EMPTY_TREE, FloatArray
from engine.upload import Upload
from engine.verify.batch import Verification, Walk, WalkItem


@dataclass(slots=True)
class StageSequence:
    """What a stage remembers of a sequence."""

    start: SequenceStart
    text: list[int]  # copied tokens and chunks so far, kept only until the first draw
    history: History | None = None  # last stage only, and only if penalties or a minimum length need it
    grammar: GrammarState | None = None  # last stage only, and only of a request with a grammar
    draws: bool = False  # the first token was drawn: histories and grammars follow the walks from there

    def remember(self, work: Work, grammars: Grammars | None) -> None:
        """Keep the text that penalties, a minimum length and a grammar look at; the walk itself adds what it commits.

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
        """What is to be walked; ``root`` is the row of the tree's root, or of the chunk's last token."""
        context, tree = work.n_cached + len(work.tokens), work.tree or EMPTY_TREE
        return WalkItem(tree, root, self.start.params, self.history, context, work.max_new, self.grammar)


class StepAnswer:
    """One step's answer in the making.

    Args:
        works: of the step.
        spans: rows of every work.
        sequences: of every work; they remember its text.
        vocab: width of the logits.
        upload: takes what has to be on the device, to be sent before ``results``.
        head: makes logits ``[n, vocab]`` of hidden states ``[n, hidden]``.
        grammars: of the model; None: no sequence may have one.
    """

    def __init__(
        self,
        works: Sequence[Work],
        spans: Sequence[Span],
        sequences: Sequence[StageSequence],
        vocab: int,
        upload: Upload,
        head: Callable[[Tensor], Tensor],
        grammars: Grammars | None = None,
    ) -> None:
        self._works, self._head = works, head
        needs = [sequence.start.needs for sequence in sequences]
        needed = [logit_rows(work, need) for work, need in zip(works, needs, strict=True)]
        picked: list[int] = []
        firsts: list[int] = []
        items: list[WalkItem] = []
        for work, span, rows, sequence in zip(works, spans, needed, sequences, strict=True):
            firsts.append(len(picked))
            picked.extend(span.first + row for row in rows.rows)
            sequence.remember(work, grammars)
            if work.draw:
                items.append(sequence.walk_item(work, firsts[-1] + (len(rows.rows) - 1 if work.tree is None else 0)))
        is_all = len(picked) == sum(span.n for span in spans)
        self._picked = None if is_all else upload.add(picked)  # rows of the step that go through the head
        self._verification = Verification(items, vocab, upload)
        self._read_back = ReadBack(works, needs, needed, firsts, upload)
        ks = [sequence.start.params.prompt_logprobs or 0 for sequence in sequences]
        self._prompt_logprobs = PromptLogprobs(works, ks, firsts, vocab, upload)
        self._states = StatesReadBack(works, needs, spans)

    def results(self, activations: Activations) -> list[WorkResult]:
        """The answer to every work, in order."""
        hidden = activations.hidden[0]
        logits = self._head(hidden if self._picked is None else hidden.index_select(0, self._picked.tensor))
        begun = [
            *self._verification.begin(logits),
            *self._read_back.begin(logits),
            *self._prompt_logprobs.begin(logits),
        ]
        # Here the host waits; later only for levels of the rejection rule, and for states that walks choose from.
        arrays = iter(fetch([*begun, *self._states.begin(activations.tapped)]))
        drawn = iter(self._verification.finish(arrays))
        walks = [next(drawn) if work.draw else Walk() for work in self._works]
        tops, of_prompts = self._read_back.finish(arrays), self._prompt_logprobs.finish(arrays)
        return assemble(self._works, walks, tops, of_prompts, self._states.finish(arrays, walks))


def assemble(
    works: Sequence[Work],
    walks: Sequence[Walk],
    tops: Sequence[TopRows],
    of_prompts: Sequence[list[TokenLogprob] | None],
    states: Sequence[FloatArray | None],
) -> list[WorkResult]:
    """The answers, of what every work has of each kind."""
    return [
        WorkResult(
            work.seq,
            walk.tokens,
            walk.accepted,
            walk.logprobs,
            top.nodes,
            top.prompt_ids,
            its_states,
            prompt_top_logprobs=top.prompt_logprobs,
            prompt_logprobs=its_prompt,
            error=walk.error,
        )
        for work, walk, top, its_prompt, its_states in zip(works, walks, tops, of_prompts, states, strict=True)
    ]
