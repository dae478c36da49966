"""The control plane's certificate authority, which issues keys and certificates in a private folder."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = dt.timedelta(days=30)
_CLOCK_SKEW = dt.timedelta(minutes=5)


@dataclass(frozen=True)
class Certificate:
    """PEM files of a certificate and its key."""

    certificate: Path
    key: Path


class CertificateAuthority:
    """Issues the certificates of one control plane and of the programs that serve it."""

    def __init__(self, folder: Path, *, extended: bool = True) -> None:
        """Create a new authority with its files in `folder`, readable by their owner only.

        Args:
            folder: folder of the authority's files.
            extended: whether certificates carry their key usage and the identifiers of their own and their issuer's
                key. RFC 5280 requires them of authorities; the certificates of many clusters lack them, and kubectl
                accepts those.
        """
        self.folder = folder
        self._extended = extended
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("joulie-local-control-plane")
        builder = self._builder(self._name, self._key.public_key(), signs_certificates=True)
        certificate = builder.sign(self._key, hashes.SHA256())
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        file_name: str,
        *,
        common_name: str | None = None,
        groups: Sequence[str] = (),
        hosts: Sequence[str] = (),
    ) -> Certificate:
        """Issue a certificate that is valid for clients and servers.

        Args:
            file_name: base name of the files FILE_NAME.crt and FILE_NAME.key in the authority's folder.
            common_name: common name, the Kubernetes user name of a client; `file_name` if empty.
            groups: Kubernetes groups of a client.
            hosts: host names and IP addresses of a server.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(common_name or file_name, groups)
        builder = self._builder(subject, key.public_key(), signs_certificates=False).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        files = Certificate(self.folder / f"{file_name}.crt", self.folder / f"{file_name}.key")
        files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        write_private_key(files.key, key)
        return files

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, signs_certificates: bool
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + _VALID)
            .add_extension(
                x509.BasicConstraints(ca=signs_certificates, path_length=0 if signs_certificates else None),
                critical=True,
            )
        )
        if not self._extended:
            return builder
        issuer_key = self._key.public_key()
        return (
            builder.add_extension(_usage(signs_certificates=signs_certificates), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
        )


def write_private_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write `key` as unencrypted PEM, readable by its owner only."""
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def write_service_account_keys(folder: Path) -> Certificate:
    """Create the key pair that signs and verifies ServiceAccount tokens; the "certificate" is the bare public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    files = Certificate(folder / "service-account.pub", folder / "service-account.key")
    files.certificate.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    write_private_key(files.key, key)
    return files


def _name(common_name: str, groups: Sequence[str] = ()) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        + [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
