"""The certificate for HTTPS: checked before use, and replaced while streams run."""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from app.serving.environment import write_private
from engine.errors import ConfigError

CERT_FLAG, KEY_FLAG = "--tls-cert", "--tls-key"
POLL_S = 1.0
MAX_BUNDLE = 15_000  # bytes; HAProxy's buffer for a new certificate has 16 KiB

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CertificateFiles:
    """Paths of a PEM certificate chain, the server's own first, and of its PEM private key without a password."""

    cert: str
    key: str

    def bundle(self) -> bytes:
        """Return chain and key as one PEM document, the form that HAProxy reads.

        Raises:
            ConfigError: a file is unusable, the two do not match, or the certificate is not valid now; names the flag.
        """
        try:
            chain = x509.load_pem_x509_certificates(_read(CERT_FLAG, self.cert))
        except ValueError as error:
            raise ConfigError(f"{CERT_FLAG} {self.cert!r} holds no PEM certificate that can be read: {error}") from None
        try:
            key = load_pem_private_key(_read(KEY_FLAG, self.key), None)
        except TypeError:  # it needs a password
            raise ConfigError(f"{KEY_FLAG} {self.key!r} is encrypted; it must be a key without a password") from None
        except ValueError:  # whose text may quote the file
            raise ConfigError(f"{KEY_FLAG} {self.key!r} holds no PEM private key that can be read") from None
        if chain[0].public_key() != key.public_key():
            raise ConfigError(f"{KEY_FLAG} {self.key!r} is not the key of the first certificate in {self.cert!r}")
        first, last = chain[0].not_valid_before_utc, chain[0].not_valid_after_utc
        if not first <= datetime.now(UTC) <= last:
            raise ConfigError(f"{CERT_FLAG} {self.cert!r} is valid only from {_minute(first)} to {_minute(last)}")
        parts = [one.public_bytes(Encoding.PEM) for one in chain]
        bundle = b"".join([*parts, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())])
        if len(bundle) > MAX_BUNDLE:
            raise ConfigError(
                f"{CERT_FLAG} {self.cert!r} and its key have {len(bundle)} bytes; they may have {MAX_BUNDLE}: remove "
                "the root certificate from the chain"
            )
        return bundle

    def state(self) -> list[object]:
        """Return a value that changes when either file is written, replaced or removed, also behind a symbolic link."""
        found: list[object] = []
        for name in (self.cert, self.key):
            with contextlib.suppress(OSError):
                status = os.stat(name)
                found += [name, status.st_ino, status.st_mtime_ns, status.st_size]
        return found


def certificate_files(cert: str | None, key: str | None) -> CertificateFiles | None:
    """Return the files of the two flags, or None without them; raise ConfigError if only one is given."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        given, missing = (KEY_FLAG, CERT_FLAG) if cert is None else (CERT_FLAG, KEY_FLAG)
        raise ConfigError(f"{given} needs {missing}: give both, or neither for plain HTTP")
    return CertificateFiles(cert, key)


def client_context(bundle: bytes) -> ssl.SSLContext:
    """Return a context for the server's requests to itself, which trusts this certificate alone, under any name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate is for the names that clients use
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    leaf = x509.load_pem_x509_certificates(bundle)[0]
    context.load_verify_locations(cadata=leaf.public_bytes(Encoding.DER))
    return context


class CertificateWatch(threading.Thread):
    """A thread that keeps the bundle at ``path`` up to date with the operator's files; invalid files change nothing.

    ``install`` is called with every bundle but the first once the file is written, and again after an OSError. Raises
    ConfigError as ``CertificateFiles.bundle``.
    """

    def __init__(self, files: CertificateFiles, path: Path, install: Callable[[bytes], None]) -> None:
        super().__init__(name="certificate-watch", daemon=True)
        self._files = files
        self.path = path
        self._install = install
        self._last = self._done = files.state()  # at the last look, and of the files that were last handled
        self._failure = ""  # logged last
        self._ended = threading.Event()
        self.bundle = files.bundle()
        write_private(path, self.bundle)

    def run(self) -> None:
        while not self._ended.wait(POLL_S):
            self.look()

    def stop(self) -> None:
        self._ended.set()
        if self.is_alive():
            self.join()

    def look(self) -> None:
        """Install changed files once two looks find them the same: the operator writes one after the other."""
        before, self._last = self._last, self._files.state()
        if self._last == self._done or self._last != before:
            return
        try:
            bundle = self._files.bundle()
            write_private(self.path, bundle)
            self._install(bundle)
        except ConfigError as error:
            self._done = self._last
            logger.warning("the certificate in use stays: %s", error)
        except OSError as error:  # HAProxy may be restarting, or the disk full: retried at the next look
            if str(error) != self._failure:
                self._failure = str(error)
                logger.warning("the new certificate is not in use yet: %s", error)
        else:
            self._done, self._failure, self.bundle = self._last, "", bundle
            until = x509.load_pem_x509_certificates(bundle)[0].not_valid_after_utc
            logger.info("a new certificate is in use, valid until %s", _minute(until))


def _read(flag: str, name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise ConfigError(f"{flag} {name!r} cannot be read: {error.strerror}") from error


def _minute(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"
