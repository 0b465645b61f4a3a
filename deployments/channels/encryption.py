"""TLS of channels between nodes, from nothing but the secret that both ends know.

Key and certificate are a function of the secret: both ends make the same ones, show them, and trust no others. An
operator has no authority to run and nothing to renew: a certificate lives as long as its pipeline or router.
"""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

NAME = "spectra channel"
ALWAYS = (datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))  # clocks play no role


@lru_cache(maxsize=16)  # a process has the secrets of its own pipeline or router, and of a few that it follows
def tls_context(secret: bytes, is_server: bool) -> ssl.SSLContext:
    """For the side that accepts or the one that connects; the peer must show the certificate of the same secret."""
    # Processes without channels between nodes do without these libraries.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.from_private_bytes(HKDF(SHA256(), 32, None, NAME.encode()).derive(secret))
    certificate = _certificate(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a peer is who holds the key, wherever it listens
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate)
    if is_server:
        context.num_tickets = 0  # no connection is resumed
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    descriptor = os.memfd_create(NAME)  # Python's contexts read keys from files only; this one is on no disk
    try:
        os.write(descriptor, private + ssl.DER_cert_to_PEM_cert(certificate).encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context


def _certificate(key: Ed25519PrivateKey) -> bytes:
    """In DER, the same bytes at both ends: Ed25519 signs without chance."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, *ALWAYS)
    return builder.sign(key, None).public_bytes(Encoding.DER)
