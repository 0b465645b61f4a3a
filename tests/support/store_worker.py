"""Work on a store in another process: jobs come as JSON lines on stdin, answers go as JSON lines to stdout.

``python -m tests.support.store_worker``; the same ``perform`` runs in threads for the memory store.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from retrieval_store.errors import ConflictError
from retrieval_store.stores.base import Store, StoreOptions
from retrieval_store.stores.open import open_store
from retrieval_store.stores.redis_url import PASSWORD, USERNAME


def perform(job: dict[str, Any]) -> Any:
    """One job: where, namespace, options, environment, verb, arguments, and at which time it begins."""
    for name in (USERNAME, PASSWORD):  # of this job, not of the one before
        os.environ.pop(name, None)
    os.environ.update(job["environment"])
    with closing(open_store(job["url"], job["namespace"], StoreOptions(**job["options"]))) as store:
        time.sleep(max(0.0, job["begin"] - time.time()))
        return _VERBS[job["verb"]](store, *job["arguments"])


def _publish(store: Store, folder: str, times: int) -> list[str]:
    return [store.publish(Path(folder)) for _ in range(times)]


def _race(store: Store, versions: list[str], wins: int) -> list[int]:
    """Activate alternating versions, each on the revision seen before, until ``wins`` moves were ours."""
    won: list[int] = []
    while len(won) < wins:
        seen = store.current()
        version = versions[0] if seen.version != versions[0] else versions[1]
        try:
            won.append(store.activate(version, seen.revision).revision)
        except ConflictError:
            continue
    return won


def _fetch(store: Store, version: str, folder: str) -> str:
    return str(store.fetch(version, Path(folder)))


def _activate(store: Store, version: str) -> int:
    return store.activate(version).revision


def _append(store: Store, texts: list[list[int]], limit: int) -> None:
    store.append(texts, limit)


_VERBS: dict[str, Callable[..., Any]] = {
    "publish": _publish,
    "race": _race,
    "fetch": _fetch,
    "activate": _activate,
    "append": _append,
}


def main() -> None:
    """Until stdin ends."""
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        try:
            answer = {"answer": perform(json.loads(line))}
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
