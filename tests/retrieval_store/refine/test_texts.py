"""Saved texts on disk count; unsaved ones do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from retrieval_store.index.index import Tokens
from retrieval_store.refine.texts import (
    IDS,
    ORIGINS,
    ROWS,
    STATE,
    FolderState,
    FolderTexts,
    TextWriter,
    cut,
    read_state,
)


def ids(*tokens: int) -> Tokens:
    return np.array(tokens, np.int32)


def write(folder: Path, *documents: tuple[list[Tokens], int, str], is_complete: bool = True) -> TextWriter:
    writer = TextWriter(folder)
    for pieces, source, origin in documents:
        writer.add(pieces, source, origin)
    writer.save(is_complete)
    return writer


FIRST = ([ids(1, 2, 3), ids(262_143)], 0, "a.txt")
SECOND = ([ids(1, 2, 3)], 1, "b.jsonl, line 7\nof evil")


def test_texts_come_back_with_their_origins(tmp_path: Path) -> None:
    write(tmp_path, FIRST, ([], 0, "empty.txt"), SECOND).close()
    texts = FolderTexts(tmp_path)
    assert [texts.tokens(i).tolist() for i in range(len(texts))] == [[1, 2, 3], [262_143], [1, 2, 3]]
    assert texts.tokens(0).dtype == np.int32
    assert texts.rows["source"].tolist() == [0, 0, 1]
    assert texts.rows["document"].tolist() == [0, 0, 2]
    assert texts.rows["hash"][0] == texts.rows["hash"][2] != texts.rows["hash"][1]
    assert texts.origins([2, 0]) == ["b.jsonl, line 7 of evil", "a.txt"]
    texts.close()


def test_texts_that_were_not_saved_are_cut_off(tmp_path: Path) -> None:
    writer = write(tmp_path / "killed", FIRST, is_complete=False)
    writer.add([ids(9, 9)], 0, "lost.txt")
    writer.close()  # which flushes: the bytes are there, and do not count
    assert (tmp_path / "killed" / IDS).stat().st_size == 24
    resumed = write(tmp_path / "killed", SECOND)
    resumed.close()
    write(tmp_path / "straight", FIRST, SECOND).close()
    for name in (IDS, ROWS, ORIGINS, STATE):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()
    assert resumed.state.is_complete


@pytest.mark.parametrize("name", [IDS, ROWS, ORIGINS, STATE])
def test_a_folder_with_a_damaged_file_counts_as_empty(name: str, tmp_path: Path) -> None:
    assert read_state(tmp_path / "nowhere") == FolderState()
    write(tmp_path, FIRST).close()
    assert read_state(tmp_path).texts == 2
    with (tmp_path / name).open("r+b") as file:
        file.truncate(1)
    assert read_state(tmp_path) == FolderState()


NEWLINE = 3
ENDS_LINE = np.arange(300) == NEWLINE


@pytest.mark.parametrize(
    ("tokens", "sizes"),
    [
        ([5] * 8, [8]),
        ([5] * 17, [8, 8, 1]),
        ([5, 5, 5, 5, 5, 5, NEWLINE, 5, 5, 5], [7, 3]),  # the end of a line in the last quarter
        ([5, 5, 5, 5, 5, 5, NEWLINE, NEWLINE, 5, 5], [8, 2]),  # the last one
        ([5, 5, NEWLINE, 5, 5, 5, 5, 5, 5, 5], [8, 2]),  # none there: too much would be cut off
        ([NEWLINE] * 16, [8, 8]),
        ([], [0]),
    ],
)
def test_documents_are_cut_where_lines_end(tokens: list[int], sizes: list[int]) -> None:
    pieces = list(cut(ids(*tokens), 8, ENDS_LINE))
    assert [len(piece) for piece in pieces] == sizes
    assert np.concatenate(pieces).tolist() == tokens
