"""Fetches the files of a target that a process needs."""

from __future__ import annotations

from pathlib import Path

from engine.model.ranges import LayerRange
from engine.model.resolve import resolve, revision_of
from engine.target_model.options import TargetOptions


def texts_of(options: TargetOptions) -> Path:
    """Return the directory with config and tokenizer; weights of a model on the hub may be missing.

    Raises:
        ConfigError: there is no such model on this machine or on the hub.
    """
    return resolve(options.model, options.revision, weights=())


def layers_of(options: TargetOptions, layers: LayerRange) -> Path:
    """Return the directory with a stage's weights; fetches only the weight files of its layers from the hub.

    Raises:
        ConfigError: there is no such model, or one of its files could not be fetched.
        UnsupportedModelError: its index lacks a tensor of these layers.
    """
    path = texts_of(options)
    if options.simulation is not None or not revision_of(path):
        return path
    from engine.model.loader import layer_files  # imports torch, which only a stage needs

    # A trained drafter on the last stage may embed with the target: at worst one file more is fetched.
    files = layer_files(path, layers, embeds=options.drafter is not None and layers.is_last)
    return resolve(options.model, options.revision, weights=files)
