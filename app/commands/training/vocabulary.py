"""``spectra vocabulary read``: the likeliest successors of every token, for ``token-recycling`` and mixes with it."""

from __future__ import annotations

import argparse

from app.offline.flags import add_model, checked_config
from app.reporting.report import bar

DESCRIPTION = """\
Find the likeliest successors of every token, once for each model. The model scores its whole vocabulary, and pairs of a
token and a likely successor, after six beginnings of an answer. The best successors are kept in the cache folder
($XDG_CACHE_HOME/spectra-serve). 'spectra generate|bench|serve' draft with them from their next start, until a text has
shown what follows a token (methods token-recycling, mixes with it, and auto). Outputs do not change. It takes minutes
on a GPU, and many hours on a CPU for a large vocabulary.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    read = actions.add_parser("read", help="find the likeliest successors of every token", description=DESCRIPTION)
    add_model(read)
    read.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    config = checked_config(arguments, temperature=0.0)

    from app.inputs.models import model_path  # torch takes seconds to load; a wrong flag is reported at once
    from app.offline.setup import load_target
    from app.speculation.vocabulary import beginnings, n_rows, read_rows, rows_file

    path = model_path(config.model, config.revision)
    target = load_target(config)
    with bar(None, n_rows(target.info.spec.vocab_size), "row") as shown:
        rows = read_rows(target, beginnings(path), on_rows=shown.update)
    file = rows_file(path)
    rows.write(file, file.stem)
    print(f"{len(rows.ids)} tokens, {rows.ids.shape[1]} successors each, and {len(rows.pair_keys)} pairs: {file}")
    return 0
