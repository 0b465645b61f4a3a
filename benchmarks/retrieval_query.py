"""What a snapshot costs: building it, its files, a query in it, and the memory of many processes that read it.

One text in ten is asked about, the others are indexed. A snapshot is built for each size in a process of its own (its
peak memory is that process'); then ``--readers`` processes open it, ask at the same time, and report their memory:
resident (RSS) counts shared pages in each, proportional (PSS) divides them. Two minutes; without --input the text is
Python's standard library. The last line of stdout is one JSON document.

    python -m benchmarks.retrieval_query --input DIR --input F.jsonl --tokens 1000000,10000000
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import resource
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
from tqdm import tqdm

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from app.reporting.report import as_line
from app.reporting.summaries import percentiles
from retrieval_store.index.index import Limits, Tokens
from retrieval_store.snapshots.corpus import read_documents
from retrieval_store.snapshots.files import read_through
from retrieval_store.snapshots.snapshot import Description
from retrieval_store.snapshots.snapshot_index import SnapshotIndex, open_snapshot
from retrieval_store.snapshots.snapshot_writer import write_snapshot

EVERY = 37  # tokens between two questions
QUERIES = 5000
LIMITS = {
    "suffixes of 16 to 1": Limits(16, 1, samples=32),
    "suffixes of 8 to 1": Limits(8, 1, samples=32),
    "16 to 1, 200 samples": Limits(16, 1, samples=200),
}
MIB = 2**20


def main() -> None:
    """Build, measure, print a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, action="append", help="text, JSON lines or a folder; may be repeated")
    parser.add_argument("--tokenizer", type=model_path, default=DEFAULT_MODEL)
    parser.add_argument("--tokens", default="1000000,10000000", help="sizes, tokens")
    parser.add_argument("--readers", type=int, default=8)
    arguments = parser.parse_args()
    inputs = arguments.input or [Path(sysconfig.get_paths()["stdlib"])]
    sizes = [int(size) for size in arguments.tokens.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        ids = Path(folder) / "ids.npy"
        n_tokens = tokenise(inputs, arguments.tokenizer, ids, max(sizes) * 10 // 9)
        if n_tokens < max(sizes):
            parser.error(f"--tokens: the inputs have {n_tokens} tokens only")
        results = [measure(Path(folder), ids, size, arguments.readers) for size in sizes]
    for result in results:
        show(result)
    print(as_line({"benchmark": "retrieval_query", "sizes": results}))


def tokenise(inputs: Iterable[Path], tokenizer_path: Path, path: Path, enough: int) -> int:
    """Write the ids of all texts, -1 behind each, to ``path``; returns the tokens to be indexed."""
    from app.inputs.text_index import as_text  # here: the readers' memory is to be theirs, not that of transformers
    from app.inputs.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(tokenizer_path)
    texts = (as_text(document, tokenizer) for path in inputs for document in read_documents(path))
    parts: list[npt.NDArray[np.int32]] = []
    total = 0
    with tqdm(total=enough, unit="token", unit_scale=True, desc="tokenising") as bar:
        while total < enough and (some := list(islice(texts, 64))):
            for encoding in tokenizer.backend_tokenizer.encode_batch(some, add_special_tokens=False):
                parts.append(np.array([*encoding.ids, -1], np.int32))
                total += len(encoding.ids)
            bar.update(total - bar.n)
    np.save(path, np.concatenate(parts))
    return total * 9 // 10


def texts_of(ids: Path) -> list[Tokens]:
    """The texts in a file of ``tokenise``, mapped; shuffled, as inputs come one after the other."""
    every = np.load(ids, mmap_mode="r")
    texts = np.split(every, np.flatnonzero(every == -1))
    texts = [text[1:] if n else text for n, text in enumerate(texts)]
    return [texts[n] for n in np.random.default_rng(0).permutation(len(texts))]


def measure(folder: Path, ids: Path, size: int, readers: int) -> dict[str, Any]:
    """Everything about one size."""
    snapshot = folder / str(size)
    built = in_process(build, snapshot, ids, size)
    alone = in_process(ask, snapshot, ids)
    with mp.get_context("spawn").Pool(readers) as pool:
        every = pool.starmap(ask, [(snapshot, ids)] * readers, chunksize=1)
    memory = {kind: round(float(np.mean([reader[kind] for reader in every])), 1) for kind in ("rss", "pss", "mapped")}
    return {**built, "alone": alone["queries"], "readers": readers, **memory, "side_by_side": every[0]["queries"]}


def in_process(task: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    """Run ``task`` in a process of its own, for its memory to be its own."""
    with mp.get_context("spawn").Pool(1) as pool:
        return pool.apply(task, args)


def build(snapshot: Path, ids: Path, size: int) -> dict[str, Any]:
    """Write the snapshot; seconds, and MiB at the peak."""

    def indexed() -> Iterator[Tokens]:
        left = size
        for n, text in enumerate(texts_of(ids)):
            if n % 10 and left > 0:
                yield text[:left]
                left -= len(text)

    began = time.perf_counter()
    manifest = write_snapshot(indexed(), snapshot, Description(tokenizer_hash="", vocab_size=1 << 24))
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "tokens": manifest.tokens,
        "windows": manifest.windows,
        "contexts": manifest.contexts,
        "build_s": round(seconds, 1),
        "build_peak_mib": round(peak),
        "file_mib": round(manifest.bytes / MIB, 1),
    }


def ask(snapshot: Path, ids: Path) -> dict[str, Any]:
    """Query percentiles, microseconds, and the memory of this process, MiB: before and after opening the snapshot."""
    contexts = [
        np.asarray(text[end - 16 : end], np.int32)
        for n, text in enumerate(texts_of(ids))
        if n % 10 == 0
        for end in range(16, len(text), EVERY)
    ][:QUERIES]
    before = memory()
    read_through(snapshot)
    index = open_snapshot(snapshot)
    queries = {name: query_times(index, contexts, limits) for name, limits in LIMITS.items()}
    behind = memory()
    return {**behind, "mapped": behind["rss"] - before["rss"], "queries": queries}


def query_times(index: SnapshotIndex, contexts: list[Tokens], limits: Limits) -> dict[str, float]:
    """Percentiles of the first query of every context; ``cpu_p99`` leaves out what other processes took of the core."""
    times, busy = [], []
    for context in contexts:
        began, cpu = time.perf_counter(), time.thread_time()
        index.query(context, limits)
        busy.append((time.thread_time() - cpu) * 1e6)
        times.append((time.perf_counter() - began) * 1e6)
    wall, cpu_time = percentiles(times), percentiles(busy)
    assert wall is not None
    assert cpu_time is not None
    found = {"p50": wall.p50, "p90": wall.p90, "p99": wall.p99, "cpu_p99": cpu_time.p99}
    return {name: round(value, 1) for name, value in found.items()}


def memory() -> dict[str, float]:
    """Resident and proportional memory of this process, MiB (Linux)."""
    used = psutil.Process().memory_full_info()
    return {"rss": used.rss / MIB, "pss": used.pss / MIB}


def show(result: dict[str, Any]) -> None:
    """A few lines for a person."""
    print(
        f"{result['tokens']} tokens, {result['windows']} different windows, {result['contexts']} frequent contexts: "
        f"built in {result['build_s']} s, at most {result['build_peak_mib']} MiB, {result['file_mib']} MiB on disk"
    )
    for readers in ("alone", "side_by_side"):
        for name, figures in result[readers].items():
            shown = ", ".join(f"{key} {value:6}" for key, value in figures.items())
            print(f"  {readers:>12}, {name:22} us: {shown}")
    print(
        f"  {result['readers']} readers, each: RSS {result['rss']} MiB, {result['mapped']} of them since opening it; "
        f"PSS {result['pss']} MiB"
    )


if __name__ == "__main__":
    main()
