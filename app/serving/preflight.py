"""What ``spectra serve`` looks at before it deploys, so that a mistake is told in a sentence and at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from app.composition.retrieval import watched_store
from app.config.serve import ServeConfig
from app.inputs.libraries import FLAG
from app.inputs.stores import open_store_at
from app.serving.ray_session import n_gpus
from engine.errors import ConfigError
from retrieval_store.errors import StoreUnavailableError


def check_model(config: ServeConfig, *, is_local: bool) -> None:
    """Fail here, with a clear message, not in a replica that Serve restarts three times.

    Args:
        config: of the application.
        is_local: whether this machine has all stages, and so reads the weights.

    Raises:
        ConfigError: the model, its drafter or what it looks up cannot be used together, or is not there.
        UnsupportedModelError: the model or its tokenizer cannot be loaded.
    """
    from app.composition.pipeline import target_options
    from app.composition.retrieval import library
    from app.composition.speculation import check_served_drafter, served_speculators
    from app.inputs.libraries import prepare
    from app.inputs.tokenizers import load_tokenizer
    from app.offline.setup import check_stages
    from engine.model.resolve import resolve
    from engine.model.tensors import check_files
    from engine.scheduling.request_validation import check_needs
    from engine.target.loading import describe_target, target_spec
    from speculators.registry import create

    target = target_options(config)
    path = resolve(target.model, target.revision)
    spec = target_spec(target, path)
    check_stages(spec, target.stages)
    describe_target(target, path)
    if is_local and target.simulation is None:  # else other nodes read it
        check_files(path)
    prepare(library(config))
    check_needs(create(config.method, served_speculators(config)).needs, spec)
    load_tokenizer(path)
    check_served_drafter(config)


def check_store(config: ServeConfig, say: Callable[[str], None]) -> None:
    """Say so if the store of ``--retrieval`` does not answer; the server starts without it, and asks again."""
    where = watched_store(config)
    if where:
        with closing(open_store_at(where, config.retrieval_namespace, FLAG)) as store:
            try:
                store.current()
            except StoreUnavailableError as error:
                say(f"{FLAG}: the store does not answer, serving without it until it does: {error}")


def check_gpus(config: ServeConfig, say: Callable[[str], None], *, is_local: bool) -> None:
    """Refuse a local Ray that lacks the stages' GPUs: Serve would wait for them without a word. A cluster that was
    joined may yet get more nodes, so there the lack is only told."""
    wanted = config.replicas * config.stages * config.stage_gpus
    if not wanted or wanted <= (found := n_gpus()):
        return
    lack = f"--stage-gpus is {config.stage_gpus:g}: the stages need {wanted:g} GPUs, but Ray has {found:g}"
    if is_local:
        raise ConfigError(lack)
    say(f"{lack}; the application starts once nodes with more have joined")
