"""The certificate that HTTPS shows: checked before it is used, and renewed under running streams."""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from engine.errors import ConfigError

CERT_FLAG, KEY_FLAG = "--tls-cert", "--tls-key"
LOOK_S = 1.0  # between two looks at the files
MAX_BUNDLE = 15_000  # bytes; HAProxy takes a new one in a buffer of 16 KiB

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CertificateFiles:
    """A certificate chain, the server's own first, and its private key; both PEM, the key without a password."""

    cert: str
    key: str

    def bundle(self) -> bytes:
        """Chain and key in one PEM document, as HAProxy wants them.

        Raises:
            ConfigError: names the flag whose file is missing, unreadable or malformed, or says that the two do not
                match, or when the certificate was or will be valid.
        """
        chain = self._chain()
        key = self._key()
        if _public(chain[0].public_key()) != _public(key.public_key()):
            raise ConfigError(f"{KEY_FLAG} {self.key!r} is not the key of the first certificate in {self.cert!r}")
        now = datetime.now(UTC)
        if now > chain[0].not_valid_after_utc:
            raise ConfigError(f"{CERT_FLAG} {self.cert!r} expired at {chain[0].not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
        if now < chain[0].not_valid_before_utc:
            raise ConfigError(
                f"{CERT_FLAG} {self.cert!r} is not valid before {chain[0].not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
            )
        parts = [one.public_bytes(Encoding.PEM) for one in chain]
        parts.append(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        bundle = b"".join(parts)
        if len(bundle) > MAX_BUNDLE:
            raise ConfigError(
                f"{CERT_FLAG} {self.cert!r} and its key have {len(bundle)} bytes; they may have {MAX_BUNDLE}: leave "
                "the root's certificate out"
            )
        return bundle

    def state(self) -> tuple[object, ...]:
        """Changes when either file is written or replaced, also behind a symbolic link; a missing file has a state."""
        found: list[object] = []
        for name in (self.cert, self.key):
            with contextlib.suppress(OSError):
                status = os.stat(name)
                found += [name, status.st_ino, status.st_mtime_ns, status.st_size]
        return tuple(found)

    def _chain(self) -> list[x509.Certificate]:
        try:
            return x509.load_pem_x509_certificates(_read(CERT_FLAG, self.cert))
        except ValueError as error:
            raise ConfigError(f"{CERT_FLAG} {self.cert!r} holds no PEM certificate that can be read: {error}") from None

    def _key(self) -> PrivateKeyTypes:
        try:
            return load_pem_private_key(_read(KEY_FLAG, self.key), None)
        except TypeError:  # it wants a password
            raise ConfigError(f"{KEY_FLAG} {self.key!r} is encrypted; it must be a key without a password") from None
        except ValueError:  # the library's own text may quote the file
            raise ConfigError(f"{KEY_FLAG} {self.key!r} holds no PEM private key that can be read") from None


def certificate_files(cert: str | None, key: str | None) -> CertificateFiles | None:
    """What the two flags name; None without them. Raises ConfigError when one lacks the other."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        given, missing = (KEY_FLAG, CERT_FLAG) if cert is None else (CERT_FLAG, KEY_FLAG)
        raise ConfigError(f"{given} needs {missing}: a certificate is of use only with its key")
    return CertificateFiles(cert, key)


def client_context(bundle: bytes) -> ssl.SSLContext:
    """For the server's own requests to itself: trusts this certificate alone, under whatever name it is reached."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate is for the names that clients use
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    leaf = x509.load_pem_x509_certificates(bundle)[0]
    context.load_verify_locations(cadata=leaf.public_bytes(Encoding.DER))
    return context


class CertificateWatch:
    """Keeps a bundle file up to date with the operator's files, in a daemon thread; what does not check out changes
    nothing.

    Args:
        files: the operator's.
        path: of the bundle, readable for this user alone; written now.
        install: called with every later bundle, in the thread, once the file is written; raises OSError when it has to
            be called again.

    Raises:
        ConfigError: as ``CertificateFiles.bundle``.
    """

    def __init__(self, files: CertificateFiles, path: Path, install: Callable[[bytes], None]) -> None:
        self._files = files
        self.path = path
        self._install = install
        self._seen = files.state()
        self._is_settled = True
        self._failure = ""  # said last
        self._stop = threading.Event()
        self.bundle = files.bundle()
        write_private(path, self.bundle)
        self._thread = threading.Thread(target=self._run, name="certificate-watch", daemon=True)

    def start(self) -> None:
        """Begin to look at the files."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Take a changed pair over once it has stayed the same between two looks: its files are written one by one."""
        state = self._files.state()
        if state != self._seen:
            self._seen, self._is_settled = state, False
            return
        if self._is_settled:
            return
        try:
            bundle = self._files.bundle()
            write_private(self.path, bundle)
            self._install(bundle)
        except ConfigError as error:
            self._is_settled = True
            logger.warning("the certificate in use stays: %s", error)
        except OSError as error:  # HAProxy may be starting anew, or the disk be full: tried again at the next look
            if str(error) != self._failure:
                self._failure = str(error)
                logger.warning("the new certificate is not in use yet: %s", error)
        else:
            self._is_settled, self._failure, self.bundle = True, "", bundle
            until = x509.load_pem_x509_certificates(bundle)[0].not_valid_after_utc
            logger.info("a new certificate is in use, valid until %s UTC", f"{until:%Y-%m-%d %H:%M}")


def write_private(path: Path, content: bytes) -> None:
    """Replace a file at once, readable and writable for this user alone."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _read(flag: str, name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise ConfigError(f"{flag} {name!r} cannot be read: {error.strerror}") from error


def _public(key: object) -> bytes:
    encoded: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
    return encoded
