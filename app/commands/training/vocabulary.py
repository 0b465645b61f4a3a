"""``spectra vocabulary read``: what a model says behind every token, for ``token-recycling`` and mixes with it."""

from __future__ import annotations

import argparse

from app.offline.flags import add_model, checked_config

DESCRIPTION = """\
Let the model score every token of its vocabulary, and pairs of a token and its likeliest successors, behind six
beginnings of an answer, and keep the best successors of each in the cache folder ($XDG_CACHE_HOME/spectra-serve).
Once for each model: 'spectra generate|bench|serve' that start later draft with them where a text has not shown what
follows a token (methods token-recycling, mixes with it, and auto). No text changes by it. Minutes on a GPU, for a
large vocabulary many hours on a CPU.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Make ``parser`` that of ``spectra vocabulary``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    read = actions.add_parser("read", help="score the vocabulary and keep what was said", description=DESCRIPTION)
    add_model(read)
    read.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read, write, report."""
    config = checked_config(arguments, temperature=0.0)

    from app.inputs.models import model_path  # torch takes seconds to load, a wrong flag none
    from app.offline.setup import load_target
    from app.reporting.report import bar
    from app.speculation.vocabulary import beginnings, n_rows, read_rows, rows_file

    path = model_path(config.model, config.revision)
    target = load_target(config)
    with bar(None, n_rows(target.info.spec.vocab_size), "row") as shown:
        rows = read_rows(target, beginnings(path), on_rows=shown.update)
    file = rows_file(path)
    rows.write(file, file.stem)
    print(f"{len(rows.ids)} tokens, {rows.ids.shape[1]} successors each, and {len(rows.pair_keys)} pairs: {file}")
    return 0
