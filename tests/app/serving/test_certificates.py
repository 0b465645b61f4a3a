"""Certificates of HTTPS: an invalid pair is refused before anything starts, and never replaces a valid one."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from app.cli import main
from app.config.serve import ServeConfig
from app.serving.certificates import CertificateFiles, CertificateWatch, certificate_files, client_context
from app.serving.server import Server
from benchmarks.support.server_process import free_port
from engine.errors import ConfigError

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def write(folder: Path, authority: trustme.CA, **options: datetime) -> CertificateFiles:
    issued = authority.issue_cert("127.0.0.1", **options)
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    return CertificateFiles(str(folder / "cert.pem"), str(folder / "key.pem"))


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> CertificateFiles:
    return write(tmp_path, authority)


def encrypt(files: CertificateFiles) -> None:
    path = Path(files.key)
    key = load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")))


def mismatch(files: CertificateFiles) -> None:
    trustme.CA().issue_cert("127.0.0.1").private_key_pem.write_to_path(files.key)


INVALID: dict[str, tuple[Callable[[CertificateFiles], object], str]] = {
    "no certificate": (lambda files: Path(files.cert).unlink(), "--tls-cert '.*' cannot be read: No such file"),
    "no key": (lambda files: Path(files.key).unlink(), "--tls-key '.*' cannot be read: No such file"),
    "a folder": (
        lambda files: (Path(files.key).unlink(), Path(files.key).mkdir()),
        "--tls-key '.*' cannot be read: Is a directory",
    ),
    "no PEM": (lambda files: Path(files.cert).write_text("x"), "--tls-cert '.*' holds no PEM certificate"),
    "no key in PEM": (lambda files: Path(files.key).write_text("my secret"), "--tls-key '.*' holds no PEM private key"),
    "another key": (mismatch, "--tls-key '.*' is not the key of the first certificate in '.*'"),
    "a password": (encrypt, "--tls-key '.*' is encrypted; it must be a key without a password"),
    "long": (lambda files: Path(files.cert).write_bytes(Path(files.cert).read_bytes() * 30), "remove the root"),
}


@pytest.mark.parametrize("kind", INVALID)
def test_an_invalid_pair_is_refused_without_showing_the_key(files: CertificateFiles, kind: str) -> None:
    spoil, says = INVALID[kind]
    spoil(files)
    with pytest.raises(ConfigError, match=says) as refused:
        files.bundle()
    assert "my secret" not in str(refused.value)


@pytest.mark.parametrize(("first_day", "last_day"), [(-2, -1), (1, 2)], ids=["expired", "early"])
def test_a_certificate_that_is_not_valid_now_is_refused(
    tmp_path: Path, authority: trustme.CA, first_day: int, last_day: int
) -> None:
    first, last = NOW + timedelta(first_day), NOW + timedelta(last_day)
    with pytest.raises(ConfigError, match=f"--tls-cert '.*' is valid only from {first:%F %R} UTC to {last:%F %R} UTC"):
        write(tmp_path, authority, not_before=first, not_after=last).bundle()


def test_serve_refuses_an_invalid_pair_before_it_checks_the_model(
    files: CertificateFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    mismatch(files)
    flags = ["--tls-cert", files.cert, "--tls-key", files.key, "--port", str(free_port())]
    assert main(["serve", *flags]) == 2
    printed = capsys.readouterr().err
    assert printed.splitlines()[-1].startswith("spectra: --tls-key '")
    assert "checking model" not in printed


def test_https_needs_both_flags_and_a_haproxy_of_this_server(
    files: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert certificate_files(None, None) is None
    with pytest.raises(ConfigError, match="--tls-cert needs --tls-key"):
        certificate_files("c", None)
    with pytest.raises(ConfigError, match="--tls-key needs --tls-cert"):
        certificate_files(None, "k")
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "0")
    for address, says in (
        ("auto", "--tls-cert and --ray-address exclude each"),
        (None, "--tls-cert needs HAProxy, but RAY_SERVE_ENABLE_HA_PROXY is '0'"),
    ):
        server = Server(ServeConfig(), "127.0.0.1", free_port(), address, files)
        with pytest.raises(ConfigError, match=says):
            server.start()
        server.stop()


def test_a_complete_new_pair_is_installed_and_an_invalid_one_is_logged_once(
    tmp_path: Path, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    installed: list[bytes] = []
    files = write(tmp_path, authority)
    path = tmp_path / "bundle"
    watch = CertificateWatch(files, path, installed.append)
    first = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    watch.look()
    assert not installed
    mismatch(files)
    for _ in range(5):
        watch.look()
    assert [record.message.partition(":")[0] for record in caplog.records] == ["the certificate in use stays"]
    assert (installed, path.read_bytes(), watch.bundle) == ([], first, first)
    Path(files.cert).unlink()  # for a moment, as when both are replaced
    watch.look()
    write(tmp_path, authority)
    watch.look()  # changed again: not read yet
    assert not installed
    watch.look()
    assert installed == [path.read_bytes()] == [watch.bundle] != [first]
    assert "a new certificate is in use" in caplog.records[-1].message
    assert path.stat().st_mode & 0o777 == 0o600
    assert client_context(watch.bundle).verify_mode == ssl.CERT_REQUIRED


def test_a_certificate_that_haproxy_refuses_is_installed_again_later(
    tmp_path: Path, files: CertificateFiles, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Exception | None] = [OSError("HAProxy does not run"), OSError("HAProxy does not run"), None]

    def install(bundle: bytes) -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    caplog.set_level("INFO")
    watch = CertificateWatch(files, tmp_path / "bundle", install)
    write(tmp_path, authority)
    for _ in range(6):
        watch.look()
    assert not answers
    messages = [record.message for record in caplog.records]
    assert messages[0] == "the new certificate is not in use yet: HAProxy does not run"
    assert len(messages) == 2
