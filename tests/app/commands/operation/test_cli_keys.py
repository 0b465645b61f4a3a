"""``spectra keys``: a key is shown once, a file holds only digests, and a mistake leaves the file unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.access.key_file import digest_of, read_records
from tests.support.spectra_command import run_cli


def test_a_key_is_printed_once_listed_without_it_and_revoked(tmp_path: Path) -> None:
    file = tmp_path / "keys.jsonl"
    flags = ("--namespaces", "a, b", "--feeds", "a", "--max-priority", "-3", "--tokens-per-minute", "9", "--days", "2")
    key = run_cli("keys", "new", "--file", file, "--tenant", "acme", *flags).out.strip()
    other = run_cli("keys", "new", "--file", file, "--tenant", "acme", "--admin").out.strip()
    first, second = read_records(file)
    assert (first.id, first.sha256, first.namespaces, first.feeds) == ("acme-1", digest_of(key), ("a", "b"), ("a",))
    assert (first.max_priority, first.tokens_per_minute, first.admin) == (-3, 9, False)
    assert (second.id, second.sha256, second.admin, second.expires) == ("acme-2", digest_of(other), True, None)
    for more in ([], ["--json"]):
        listed = run_cli("keys", "list", "--file", file, *more)
        assert (listed.status, "acme-1" in listed.out) == (0, True)
        assert not [secret for secret in (key, other, first.sha256) if secret in listed.out]
    assert key not in file.read_text()
    assert run_cli("keys", "revoke", "--file", file, "acme-1").status == 0
    assert [record.id for record in read_records(file)] == ["acme-2"]


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
def test_a_mistake_is_named_and_leaves_the_file(tmp_path: Path, flags: tuple[str, ...], says: str) -> None:
    file = tmp_path / "keys.jsonl"
    run_cli("keys", "new", "--file", file, "--tenant", "old")
    before = file.read_bytes()
    ran = run_cli("keys", flags[0], "--file", file, *flags[1:])
    assert ran.status == 2
    assert says in ran.err
    assert file.read_bytes() == before
