import shutil

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_store.errors import DamagedSnapshotError, ForeignSnapshotError
from retrieval_store.index.context_table import CONTEXT, FREQUENT
from retrieval_store.index.index import Limits
from retrieval_store.index.memory import MemoryIndex
from retrieval_store.snapshots.snapshot import (
    FORMAT_VERSION,
    MANIFEST,
    Description,
    encode_manifest,
    entry_of,
    read_manifest,
    verify,
    version_of,
)
from retrieval_store.snapshots.snapshot_index import open_snapshot
from retrieval_store.snapshots.snapshot_writer import write_snapshot

VOCABULARY = 262_144
IDS = st.sampled_from([0, 1, 2, 65537, VOCABULARY - 1])  # 65537 is 1 in 16 bits
DOCUMENTS = st.lists(st.lists(IDS, max_size=25), max_size=6)
ABOUT = Description(tokenizer_hash="ours", vocab_size=VOCABULARY)
EVERYTHING = Limits(samples=10**9)


def ids(tokens):
    return np.array(tokens, np.int32)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "snapshot"


def zipf_texts(n, seed=0, vocabulary=300):
    rng = np.random.default_rng(seed)
    return [rng.zipf(1.3, size=rng.integers(5, 200)) % vocabulary for _ in range(n)]


@given(DOCUMENTS, st.lists(IDS, max_size=20), st.integers(1, 8), st.integers(1, 10))
def test_a_snapshot_of_rare_contexts_answers_like_the_index_in_memory(
    tmp_path_factory, documents, context, longest, depth
):
    folder = tmp_path_factory.mktemp("snapshots") / "snapshot"
    if not any(documents):
        with pytest.raises(ValueError, match="no token"):
            write_snapshot(documents, folder, ABOUT)
        return
    write_snapshot(documents, folder, ABOUT, bucket=7)
    limits = Limits(longest=longest, shortest=1, depth=depth)
    assert open_snapshot(folder).query(ids(context), limits) == MemoryIndex(documents).query(ids(context), limits)


def test_frequent_contexts_have_the_counts_of_a_brute_force_search(folder):
    texts = zipf_texts(400)
    manifest = write_snapshot(texts, folder, ABOUT, bucket=5000)
    assert manifest.contexts > 100  # or this test is about nothing
    snapshot, memory = open_snapshot(folder), MemoryIndex(texts)
    rng, n_counted = np.random.default_rng(1), 0
    for _ in range(400):
        text = texts[rng.integers(len(texts))]
        length = int(rng.integers(1, 6))
        start = int(rng.integers(0, max(1, len(text) - length)))
        context = text[start : start + length].astype(np.int32)
        limits = Limits(longest=length, shortest=1, samples=10**9, nodes=64)
        found, wanted = snapshot.query(context, limits), memory.query(context, limits)
        assert (found.match, found.counted) == (wanted.match, wanted.counted)
        n = len(found.tokens)
        assert (found.tokens, list(found.parents), found.counts) == (
            wanted.tokens[:n],
            list(wanted.parents)[:n],
            wanted.counts[:n],
        )
        if found.counted >= FREQUENT and length <= CONTEXT:
            n_counted += 1
            assert n == len(wanted.tokens) or wanted.counts[n] == 1  # left out: what occurred once
        else:
            assert n == len(wanted.tokens)
    assert n_counted > 100


@pytest.mark.parametrize("depth", [1, 3, 9])
def test_paths_of_frequent_contexts_are_cut_to_the_requested_depth(folder, depth):
    texts = zipf_texts(200, vocabulary=20)
    write_snapshot(texts, folder, ABOUT)
    context = ids([1])
    found = open_snapshot(folder).query(context, Limits(1, 1, depth=depth, nodes=40))
    wanted = MemoryIndex(texts).query(context, Limits(1, 1, depth=10, nodes=40, samples=10**9))
    depths: list[int] = []
    for parent in wanted.parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    kept = [n for n, below in enumerate(depths) if below <= depth]
    assert list(found.tokens) == [wanted.tokens[n] for n in kept]
    assert list(found.counts) == [wanted.counts[n] for n in kept]
    assert [found.tokens[parent] if parent >= 0 else None for parent in found.parents] == [
        wanted.tokens[wanted.parents[n]] if wanted.parents[n] >= 0 else None for n in kept
    ]


def test_the_same_texts_are_the_same_version_whatever_the_bucket_size(tmp_path):
    texts = zipf_texts(100)
    versions = {write_snapshot(texts, tmp_path / str(size), ABOUT, bucket=size).version for size in (100, 3000, 10**6)}
    assert len(versions) == 1
    other = write_snapshot(texts[:-1], tmp_path / "other", ABOUT)
    foreign = write_snapshot(texts, tmp_path / "foreign", Description(tokenizer_hash="x", vocab_size=VOCABULARY))
    assert len(versions | {other.version, foreign.version}) == 3


def test_texts_come_back_and_stay_readable_after_the_folder_is_removed(folder, monkeypatch):
    monkeypatch.setattr("retrieval_store.snapshots.snapshot_index._SCAN", 100)
    texts = [*zipf_texts(30), np.array([VOCABULARY - 1]), np.array([], np.int64)]
    write_snapshot(texts, folder, ABOUT)
    snapshot = open_snapshot(folder)
    before = snapshot.query(ids(texts[0][:3]), EVERYTHING)
    shutil.rmtree(folder)
    assert snapshot.query(ids(texts[0][:3]), EVERYTHING) == before
    assert [text.tolist() for text in snapshot.documents()] == [text.tolist() for text in texts[:-1]]


def test_a_writer_that_fails_leaves_nothing_and_never_overwrites(folder, tmp_path):
    for bad in (VOCABULARY, -1):
        with pytest.raises(ValueError, match=str(bad)):
            write_snapshot((assert_absent(folder, text) for text in ([1], [2, bad])), folder, ABOUT)
    assert list(tmp_path.iterdir()) == []
    write_snapshot([[1, 2]], folder, ABOUT)
    with pytest.raises(FileExistsError):
        write_snapshot([[3]], folder, ABOUT)
    assert open_snapshot(folder).query(ids([1]), Limits(shortest=1)).tokens == [2]


def assert_absent(folder, text):
    assert not folder.exists()
    return text


@pytest.mark.parametrize(
    ("old", "new", "error", "said"),
    [
        ("", "", ForeignSnapshotError, "{version}.*ours.*theirs"),
        (f'"format_version": {FORMAT_VERSION}', '"format_version": 1', ForeignSnapshotError, "build it again"),
        ("spectra-snapshot", "other", ForeignSnapshotError, "build it again"),
        ('"sha256": "', '"sha256": "0', DamagedSnapshotError, "version"),
        ("{", "", DamagedSnapshotError, "snapshot"),
        ('"sources"', '"other"', DamagedSnapshotError, "snapshot"),
    ],
)
def test_a_foreign_or_edited_manifest_is_refused_by_name(folder, old, new, error, said):
    manifest = write_snapshot([[1, 2]], folder, ABOUT)
    open_snapshot(folder, "ours")
    path = folder / MANIFEST
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(error, match=said.format(version=manifest.version)):
        open_snapshot(folder, "theirs" if old == "" else "ours")


def test_a_truncated_changed_or_missing_file_is_refused_by_name(folder):
    write_snapshot(zipf_texts(100), folder, ABOUT)
    for name in ("text.bin", "order.bin", "starts.bin", "contexts.marisa", "records.bin"):
        path = folder / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        with pytest.raises(DamagedSnapshotError, match=f"{name} has {len(whole) - 1} bytes instead of {len(whole)}"):
            open_snapshot(folder)
        path.unlink()
        with pytest.raises(DamagedSnapshotError, match=f"{name} is missing"):
            open_snapshot(folder)
        path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        with pytest.raises(DamagedSnapshotError, match=f"{name} does not have the sha256"):
            verify(folder)
        path.write_bytes(whole)


def sign(folder):
    """Give the manifest the sizes and hashes that the files have now."""
    manifest = read_manifest(folder)
    files = {name: entry_of(folder / name) for name in manifest.files}
    signed = msgspec.structs.replace(manifest, files=files, version=version_of(manifest.about, files))
    (folder / MANIFEST).write_bytes(encode_manifest(signed))


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("order.bin", lambda raw: b"\xff" * len(raw), "beyond the end of text.bin"),
        ("order.bin", lambda raw: raw[:-4], "do not hold"),
        ("text.bin", lambda raw: raw[:-4] + bytes(4), "do not hold"),
        ("text.bin", lambda raw: raw[:40], "do not hold"),
        ("starts.bin", lambda raw: raw[8:], "does not rise"),
        ("starts.bin", lambda raw: raw[:8] + b"\xff" * 7 + b"\x7f" + raw[16:], "does not rise"),
        ("starts.bin", lambda raw: b"", "does not rise"),
        ("starts.bin", lambda raw: raw[:-3], "does not open"),
        ("contexts.marisa", lambda raw: b"no trie" + raw[7:], "does not open"),
    ],
)
def test_a_file_with_a_valid_hash_and_wrong_contents_is_refused(folder, name, change, problem):
    write_snapshot(zipf_texts(100), folder, ABOUT)
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    sign(folder)
    verify(folder)
    with pytest.raises(DamagedSnapshotError, match=problem):
        open_snapshot(folder)
