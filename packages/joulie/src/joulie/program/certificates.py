"""Self-signed serving certificates for programs that are not given one, as in kube-scheduler.

A certificate is signed with its own key and is not a certificate authority: a client that trusts it trusts only this
server, and there is no CA key to protect.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from joulie.program.http import TlsFiles

YEAR_S = 365 * 86400.0
_CLOCK_SKEW_S = 300.0
_MAX_COMMON_NAME = 64


class KeyPair(NamedTuple):
    """A certificate and its private key, in PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "KeyPair(...)"


def self_signed(hosts: Sequence[str], now_s: float, *, valid_s: float = YEAR_S) -> KeyPair:
    """Create a key and a self-signed certificate.

    Args:
        hosts: DNS names and IP addresses of the server, at least one.
        now_s: current time, s since the epoch.
        valid_s: validity from now, s.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:_MAX_COMMON_NAME])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime.fromtimestamp(now_s - _CLOCK_SKEW_S, dt.UTC))
        .not_valid_after(dt.datetime.fromtimestamp(now_s + valid_s, dt.UTC))
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def expires_s(certificate: bytes) -> float:
    """Expiry of a certificate, or of the first one of a chain, s since the epoch.

    Raises:
        ValueError: not a PEM certificate.
    """
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()


def write_files(folder: Path, pair: KeyPair) -> TlsFiles:
    """Write certificate and key to a folder; a server that already uses these files reloads them."""
    files = TlsFiles(folder / "tls.crt", folder / "tls.key")
    files.key.touch(mode=0o600)
    files.key.write_bytes(pair.key)
    files.certificate.write_bytes(pair.certificate)
    return files


def https_files(
    certificate: Path | None, key: Path | None, folder: Path, hosts: Sequence[str], now_s: float
) -> TlsFiles:
    """The given TLS files, else files with a new self-signed certificate.

    Args:
        certificate: certificate file of the user; None without one.
        key: key file of the user; None without one.
        folder: folder for self-signed files; private to this program.
        hosts: DNS names and IP addresses of the server, for a self-signed certificate.
        now_s: current time, s since the epoch.
    """
    if certificate is not None and key is not None:
        return TlsFiles(certificate, key)
    return write_files(folder, self_signed(hosts, now_s))


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
