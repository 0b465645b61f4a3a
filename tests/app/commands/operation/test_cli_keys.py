"""``spectra keys``: a key is shown once, a file holds only digests, and mistakes leave it as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.access.key_file import digest_of, read_records
from app.cli import main

Captured = pytest.CaptureFixture[str]


def test_a_key_is_printed_once_listed_without_it_and_revoked(tmp_path: Path, capsys: Captured) -> None:
    file = str(tmp_path / "keys.jsonl")
    flags = ("--namespaces", "a, b", "--feeds", "a", "--max-priority", "-3", "--tokens-per-minute", "9", "--days", "2")
    assert main(["keys", "new", "--file", file, "--tenant", "acme", *flags]) == 0
    key = capsys.readouterr().out.strip()
    assert main(["keys", "new", "--file", file, "--tenant", "acme", "--admin"]) == 0
    other = capsys.readouterr().out.strip()
    first, second = read_records(Path(file))
    assert (first.id, first.sha256, first.namespaces, first.feeds) == ("acme-1", digest_of(key), ("a", "b"), ("a",))
    assert (first.max_priority, first.tokens_per_minute, first.admin) == (-3, 9, False)
    assert (second.id, second.sha256, second.admin, second.expires) == ("acme-2", digest_of(other), True, None)
    for more in ([], ["--json"]):
        assert main(["keys", "list", "--file", file, *more]) == 0
        said = capsys.readouterr().out
        assert "acme-1" in said
        assert not [secret for secret in (key, other, first.sha256) if secret in said]
    assert key not in Path(file).read_text()
    assert main(["keys", "revoke", "--file", file, "acme-1"]) == 0
    assert [record.id for record in read_records(Path(file))] == ["acme-2"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("new", "--tenant", "a b"), "tenant is 'a b'"),
        (("new", "--tenant", "a", "--id", "old-1"), "--id old-1 is taken"),
        (("new", "--tenant", "a", "--namespaces", "../up"), "namespaces.0 is '../up'"),
        (("new", "--tenant", "a", "--methods", "magic"), "unknown method 'magic'"),
        (("new", "--tenant", "a", "--max-nodes", "-1"), "max_nodes is -1; it must be at least 0"),
        (("new", "--tenant", "a", "--days", "inf"), "--days is inf"),
        (("revoke", "old-2"), "there is no key old-2"),
    ],
)
def test_a_mistake_is_named_and_leaves_the_file(
    tmp_path: Path, capsys: Captured, flags: tuple[str, ...], says: str
) -> None:
    file = tmp_path / "keys.jsonl"
    main(["keys", "new", "--file", str(file), "--tenant", "old"])
    before = file.read_bytes()
    assert main(["keys", flags[0], "--file", str(file), *flags[1:]]) == 2
    assert says in capsys.readouterr().err
    assert file.read_bytes() == before
