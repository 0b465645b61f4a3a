"""The files of a target, where a process needs them: each process fetches its own, and no more."""

from __future__ import annotations

from pathlib import Path

from engine.model.ranges import LayerRange
from engine.model.resolve import resolve, revision_of
from engine.target_model.options import TargetOptions


def texts_of(options: TargetOptions) -> Path:
    """Directory with the target's configuration and tokenizer; the weights of a model on the hub may not be there.

    Raises:
        ConfigError: there is no such model here, or on the hub.
    """
    return resolve(options.model, options.revision, weights=())


def layers_of(options: TargetOptions, layers: LayerRange) -> Path:
    """Directory with what a stage reads; of a model on the hub only the weight files that hold its layers are fetched.

    Raises:
        ConfigError: there is no such model here or on the hub, or a file of it could not be fetched.
        UnsupportedModelError: its index lacks a tensor of these layers.
    """
    path = texts_of(options)
    if options.simulation is not None or not revision_of(path):
        return path
    from engine.model.loader import layer_files  # loads torch, which only a stage has use for

    # A trained drafter on the last stage may embed with the target: at worst this is one file too many.
    files = layer_files(path, layers, embeds=options.drafter is not None and layers.is_last)
    return resolve(options.model, options.revision, weights=files)
