"""Settings of the methods, and how to make a speculator from a method's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from engine.errors import UnknownMethodError
from engine.protocol import Speculator
from engine.step_cost import StepCosts
from retrieval_store.index.index import Library
from speculators.auto.config import AutoConfig
from speculators.auto.speculator import Auto
from speculators.autoregressive import Autoregressive
from speculators.corpus.rest import Rest, RestConfig
from speculators.draft_model.config import DraftModelConfig
from speculators.draft_model.speculator import DraftModel
from speculators.grammar import GrammarConfig, GrammarDrafts
from speculators.methods import AVAILABLE, STANDALONE, TRAINED, check_name, method_names
from speculators.mixing.combined import CombinationConfig, Combined
from speculators.ngrams.anpd import Anpd, AnpdConfig
from speculators.ngrams.lookahead import Lookahead, LookaheadConfig
from speculators.ngrams.pld import PldConfig, PromptLookup
from speculators.ngrams.suffix import SuffixConfig, SuffixDecoding
from speculators.peers.adapld import AdaPld, AdaPldConfig
from speculators.peers.goose import Goose, GooseConfig
from speculators.peers.stand import Stand, StandConfig
from speculators.pld_plus.speculator import PldPlusAttention, PldPlusConfig, PldPlusHidden
from speculators.prediction.config import PredictionConfig
from speculators.prediction.speculator import Prediction
from speculators.spectra.core import SpectraCore, SpectraCoreConfig
from speculators.spectra.retrieval import SpectraRetrieval, SpectraRetrievalConfig
from speculators.spectra.speculator import Spectra, SpectraConfig
from speculators.successors.config import CORPUS, TARGET, TEXT, SuccessorConfig
from speculators.successors.speculator import Successors
from speculators.successors.token_recycling import TokenRecycling, TokenRecyclingConfig
from speculators.successors.vocabulary import VocabularyRows
from speculators.trained import TrainedDrafts


@dataclass(frozen=True, slots=True)
class SpeculatorOptions:
    """Settings of every method, at their defaults unless given."""

    trained: str | None = None  # the method of the target's trained drafter
    draft_model: DraftModelConfig = field(default_factory=DraftModelConfig)
    adapld: AdaPldConfig = field(default_factory=AdaPldConfig)  # its layer is the model's
    anpd: AnpdConfig = field(default_factory=AnpdConfig)
    goose: GooseConfig = field(default_factory=GooseConfig)
    lookahead: LookaheadConfig = field(default_factory=LookaheadConfig)
    pld: PldConfig = field(default_factory=PldConfig)
    pld_plus: PldPlusConfig = field(default_factory=PldPlusConfig)  # layer and heads are the model's
    prediction: PredictionConfig = field(default_factory=PredictionConfig)
    rest: RestConfig = field(default_factory=RestConfig)
    retrieval: Callable[[], Library] | None = None  # makes or finds the corpus; called once per process or more
    spectra_core: SpectraCoreConfig = field(default_factory=SpectraCoreConfig)
    spectra_retrieval: SpectraRetrievalConfig = field(default_factory=SpectraRetrievalConfig)
    spectra: SpectraConfig = field(default_factory=SpectraConfig)  # how those two share a tree
    stand: StandConfig = field(default_factory=StandConfig)
    suffix: SuffixConfig = field(default_factory=SuffixConfig)
    token_recycling: TokenRecyclingConfig = field(default_factory=TokenRecyclingConfig)
    successors: SuccessorConfig = field(default_factory=SuccessorConfig)  # of both, where they are not the papers'
    vocabulary: VocabularyRows | None = None  # the target's, for both
    combination: CombinationConfig = field(default_factory=CombinationConfig)
    grammar: GrammarConfig | None = None  # the target's tokenizer; None: none is to be had
    auto: AutoConfig = field(default_factory=AutoConfig)
    step_costs: StepCosts | None = None  # of the target, for auto; see engine.step_cost

    def warm(self) -> SpeculatorOptions:
        """The same, where methods that can learn from one request for the next do so, within a scope."""
        return replace(
            self,
            goose=replace(self.goose, shared=True),
            stand=replace(self.stand, shared=True),
            suffix=replace(self.suffix, shared=True),
            token_recycling=replace(self.token_recycling, shared=True),
            successors=replace(self.successors, shared=True),
        )


Factory = Callable[[SpeculatorOptions], Speculator]


def _trained(name: str) -> Factory:
    return lambda options: TrainedDrafts(name, options.trained)


_FACTORIES: Mapping[str, Factory] = MappingProxyType(
    {
        "autoregressive": lambda options: Autoregressive(),
        "draft-model": lambda options: DraftModel(options.draft_model),
        "adapld": lambda options: AdaPld(options.adapld),
        "anpd": lambda options: Anpd(options.anpd),
        "grammar": lambda options: _grammar(options),
        "goose": lambda options: Goose(options.goose),
        "lookahead": lambda options: Lookahead(options.lookahead),
        "pld": lambda options: PromptLookup(options.pld),
        "prediction": lambda options: Prediction(options.prediction),
        "spectra-core": lambda options: SpectraCore(options.spectra_core),
        "pld-plus-h": lambda options: PldPlusHidden(options.pld_plus),
        "pld-plus-a": lambda options: PldPlusAttention(options.pld_plus),
        "token-recycling": lambda options: _token_recycling(options),
        "stand": lambda options: Stand(options.stand),
        "suffix": lambda options: _suffix(options),
        "rest": lambda options: Rest(_library(options, "rest"), options.rest),
        "spectra-retrieval": lambda options: _spectra_retrieval(options),
        "spectra": lambda options: _spectra(options),
        **{name: _trained(name) for name in TRAINED},
    }
)


def create(
    method: str,
    options: SpeculatorOptions | None = None,
    extra: Mapping[str, Factory] | None = None,
    parts: dict[str, Speculator] | None = None,
) -> Speculator:
    """A speculator for ``method``: one name, or several joined with ``+`` in priority order.

    Args:
        method: for instance ``pld`` or ``pld+spectra-core``.
        options: per-method settings.
        extra: factories under names that are no product's: how tests bring their own speculators.
        parts: speculators made before, by name; what is missing is added. A drafter's weights are in memory once,
            however many methods join it with others, ``auto`` among them.

    Raises:
        UnknownMethodError: a name is unknown (the message lists the available ones), not available yet, or repeated.
    """
    options = options or SpeculatorOptions()
    made = {} if parts is None else parts
    factories: dict[str, Factory] = {**_FACTORIES, **(extra or {})}
    factories.setdefault("auto", lambda options: _auto(options, factories, made))
    joined = _parts(method_names(method, factories), factories, options, made)
    return joined[0] if len(joined) == 1 else Combined(joined, options.combination)


def available(options: SpeculatorOptions) -> tuple[str, ...]:
    """The names that can be made of ``options``: the others lack their corpus, layer, heads, tokenizer or drafter."""
    has_input = {
        "rest": options.retrieval is not None,
        "spectra-retrieval": options.retrieval is not None,
        "pld-plus-h": options.pld_plus.layer is not None,
        "pld-plus-a": bool(options.pld_plus.heads),
        "adapld": options.adapld.layer is not None,
        "draft-model": options.draft_model.path is not None,
        "grammar": options.grammar is not None,
        **{name: name == options.trained for name in TRAINED},
    }
    return tuple(name for name in AVAILABLE if name in STANDALONE or has_input[name])


def _parts(
    names: list[str], factories: Mapping[str, Factory], options: SpeculatorOptions, made: dict[str, Speculator]
) -> list[Speculator]:
    """A speculator per name, from ``made`` if it is there; the parts of one mixed model are one."""
    modes = {TEXT: options.suffix.mode, TARGET: options.token_recycling.mode, CORPUS: options.spectra_retrieval.mode}
    mixed = tuple(name for name in names if modes.get(name) == "mixed")
    whole = len(mixed) > 1
    parts: list[Speculator] = []
    for name in names:
        check_name(name, factories)
        if not whole or name not in mixed:
            if name not in made:
                made[name] = factories[name](options)
            parts.append(made[name])
        elif name == mixed[0]:
            joined = "+".join(mixed)
            if joined not in made:
                library = _library(options, CORPUS) if CORPUS in mixed else None
                made[joined] = Successors(options.successors, mixed, options.vocabulary, library)
            parts.append(made[joined])
    return parts


def _auto(options: SpeculatorOptions, factories: Mapping[str, Factory], made: dict[str, Speculator]) -> Speculator:
    """The two halves of the mixed model, every other source that has its input, and what drafts fastest.

    With any sources, a request that brings a prediction is drafted for from it. Sources are those that ``made`` has.
    """
    names = list(options.auto.sources) or [TEXT, TARGET]
    if not options.auto.sources:
        names += ["draft-model"] if options.draft_model.path is not None else []
        names += [options.trained] if options.trained is not None else []
        names += [CORPUS] if options.retrieval is not None and options.auto.retrieval else []
        names += ["pld"]
        names += ["grammar"] if options.grammar is not None else []
    names += [] if "prediction" in names else ["prediction"]
    return Auto(_parts(names, factories, options, made), options.step_costs, options.auto)


def _grammar(options: SpeculatorOptions) -> GrammarDrafts:
    if options.grammar is None:
        raise UnknownMethodError("method 'grammar' needs the target's tokenizer, which is not known here", "method")
    return GrammarDrafts(options.grammar.grammars())


def _suffix(options: SpeculatorOptions) -> Speculator:
    if options.suffix.mode == "paper":
        return SuffixDecoding(options.suffix)
    return Successors(options.successors, (TEXT,))


def _token_recycling(options: SpeculatorOptions) -> Speculator:
    if options.token_recycling.mode == "paper":
        return TokenRecycling(options.token_recycling)
    return Successors(options.successors, (TARGET,), options.vocabulary)


def _spectra_retrieval(options: SpeculatorOptions) -> SpectraRetrieval:
    return SpectraRetrieval(_library(options, "spectra-retrieval"), options.spectra_retrieval)


def _spectra(options: SpeculatorOptions) -> Speculator:
    """Both parts, or the core alone where there is nothing to retrieve from."""
    retrieval = None if options.retrieval is None else _spectra_retrieval(options)
    return Spectra(options.spectra_core, retrieval, options.spectra)


def _library(options: SpeculatorOptions, method: str) -> Library:
    if options.retrieval is None:
        raise UnknownMethodError(f"method {method!r} needs a corpus: give --retrieval DIR", "method")
    return options.retrieval()
