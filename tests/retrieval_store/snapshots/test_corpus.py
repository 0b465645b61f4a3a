import hashlib
import json

import pytest

from retrieval_store.snapshots import corpus
from retrieval_store.snapshots.corpus import ConversationMessage, CorpusError, corpus_hash, read_documents


def write(path, *lines):
    path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines), encoding="utf-8")
    return path


def test_conversations_come_in_three_forms(tmp_path):
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello\u2028there"}]
    path = write(
        tmp_path / "log.jsonl",
        {"messages": talk, "source": "model-a", "category": "chat", "question_id": 7, "extra": [1]},
        {"prompt": "hi", "answer": "hello"},
        {"question": "hi", "answer": "", "source": "model-b"},
    )
    first, second, third = read_documents(path)
    assert first.messages == [ConversationMessage("user", "hi"), ConversationMessage("assistant", "hello\u2028there")]
    assert (first.source, first.category, first.id, first.origin) == ("model-a", "chat", 7, f"{path}, line 1")
    assert second.messages == [ConversationMessage("user", "hi"), ConversationMessage("assistant", "hello")]
    assert (third.messages[1], third.source) == (ConversationMessage("assistant", ""), "model-b")


def test_texts_are_lines_or_whole_files(tmp_path):
    lines = write(tmp_path / "a.jsonl", {"text": "one"}, {"text": "two\nlines"})
    whole = tmp_path / "b.py"
    whole.write_bytes(b"\xef\xbb\xbfdef f():\n    return 1\n")
    assert [document.text for document in read_documents(lines)] == ["one", "two\nlines"]
    assert [document.text for document in read_documents(whole)] == ["def f():\n    return 1\n"]


def test_a_folder_is_read_in_order_without_hidden_and_binary_files(tmp_path):
    (tmp_path / "z").mkdir()
    (tmp_path / ".git").mkdir()
    write(tmp_path / "z" / "b.jsonl", {"text": "last"})
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / ".git" / "config").write_text("hidden")
    (tmp_path / "c.png").write_bytes(b"\x89PNG\r\n\x00\x01")
    (tmp_path / "d.bin").write_bytes(b"\xff\xfe\xfd" * 10)
    (tmp_path / "m.md").write_bytes(b"x" * 4095 + "é".encode())  # a character across the end of the sample
    (tmp_path / "n.txt").write_bytes(b"x" * 3_000_000 + b"\xff")  # turns binary late
    (tmp_path / "o.txt").write_bytes(b"x" * 3_000_000 + "é".encode()[:1])
    assert [document.text[:5] for document in read_documents(tmp_path)] == ["first", "xxxxx", "last"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "line 2"),
        (b'{"prompt": "p"}', r"line 2 has none of the forms .*messages.*text"),
        (b'{"messages": [{"role": "user"}]}', r"line 2: .*content"),
        (b'{"text": 3}', r"line 2: .*str"),
        (b'{"text": "\xff"}', "line 2"),
    ],
)
def test_a_wrong_line_or_file_is_named(tmp_path, line, said):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(CorpusError, match=said):
        list(read_documents(path))
    (tmp_path / "data.bin").write_bytes(b"\xff\xfe")
    for name, problem in (("missing.txt", "missing"), ("data.bin", r"data\.bin is not UTF-8")):
        with pytest.raises(CorpusError, match=problem):
            list(read_documents(tmp_path / name))


def test_a_huge_text_comes_in_parts_that_end_with_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "BLOCK", 20)
    path = tmp_path / "huge.txt"
    path.write_text("one two\nthree four five\nsix\n" + "é" * 45)
    found = list(read_documents(path))
    assert [document.text for document in found] == ["one two\nthree four five\n", "six\n" + "é" * 36, "é" * 9]
    assert [document.origin for document in found] == [str(path), f"{path}, part 2", f"{path}, part 3"]
    assert [document.size for document in found] == [24, 76, 18]


def test_the_hash_covers_every_byte_that_is_read(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("two")
    before, size = corpus_hash(tmp_path)
    (tmp_path / "d.bin").write_bytes(b"\xff\0")
    assert (before, size) == corpus_hash(tmp_path)
    assert size == 6
    (tmp_path / "b.txt").write_text("owt")
    changed, _ = corpus_hash(tmp_path)
    (tmp_path / "b.txt").rename(tmp_path / "c.txt")
    renamed, _ = corpus_hash(tmp_path)
    assert len({before, changed, renamed}) == 3
    assert corpus_hash(tmp_path / "a.txt") == (hashlib.sha256(b"one").hexdigest(), 3)
    with pytest.raises(CorpusError, match="missing"):
        corpus_hash(tmp_path / "missing")
