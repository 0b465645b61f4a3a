"""Flags about speculation that all offline commands share, and the speculators' settings they make."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from app.inputs.stores import DEFAULT_NAMESPACE
from speculators.draft_model.speculator import DraftModelConfig

if TYPE_CHECKING:  # torch loads when a command runs, not when --help prints
    from engine.model.spec import ModelSpec
    from engine.target.local import LocalTarget
    from speculators.registry import SpeculatorOptions


def add_speculation(parser: argparse.ArgumentParser) -> None:
    """Flags of methods that need something beside the target."""
    parser.add_argument("--max-nodes", type=int, default=64, metavar="N", help="drafted nodes per step (default: 64)")
    parser.add_argument(
        "--heads",
        type=Path,
        metavar="FILE",
        help="induction heads of the model for pld-plus-a, as 'spectra heads find' writes them (default: found at "
        "first use, and cached)",
    )
    parser.add_argument(
        "--retrieval",
        metavar="DIR|URL",
        help="what spectra, spectra-retrieval and rest look up: a snapshot, as 'spectra corpus build' writes it; a "
        "store of snapshots (a folder or redis://..), whose current one is taken; text or JSON lines, a file or a "
        "folder, indexed at start; 'builtin', this Python's standard library; or 'none' (default: none)",
    )
    parser.add_argument(
        "--retrieval-namespace",
        default=DEFAULT_NAMESPACE,
        metavar="NS",
        help=f"of the store (default: {DEFAULT_NAMESPACE})",
    )
    draft = DraftModelConfig()
    parser.add_argument(
        "--draft-model", metavar="DIR", help="the small model of draft-model ('demo': the packaged one)"
    )
    parser.add_argument(
        "--draft-tokens",
        type=int,
        default=draft.draft_tokens,
        metavar="K",
        help=f"tokens it drafts, one behind the other (default: {draft.draft_tokens})",
    )
    parser.add_argument(
        "--draft-nodes",
        type=int,
        default=draft.tree_nodes,
        metavar="N",
        help=f"nodes of the tree it drafts; 0 is a chain (default: {draft.tree_nodes})",
    )


def speculator_options(
    arguments: argparse.Namespace, path: Path, spec: ModelSpec, target: LocalTarget
) -> SpeculatorOptions:
    """Settings of every method for ``target``, whose directory is ``path``; it may be run to find its heads.

    Raises:
        ConfigError: a flag is wrong; the message names it.
    """
    from app.inputs.libraries import library_at
    from app.speculation.drafter import offline_drafter
    from app.speculation.heads import offline_heads, with_model
    from app.speculation.step_costs import offline_costs
    from speculators.registry import SpeculatorOptions

    return with_model(
        SpeculatorOptions(
            draft_model=offline_drafter(arguments, path, spec),
            retrieval=library_at(arguments.retrieval, str(path), arguments.retrieval_namespace),
            step_costs=offline_costs(arguments, path, target),
        ),
        spec,
        offline_heads(arguments, path, target),
    )
