"""Ed25519 signatures of closed months; keys are PEM files, as ``openssl genpkey -algorithm ed25519`` makes them."""

from __future__ import annotations

import base64
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)


class KeyFileError(ValueError):
    """A file that holds no usable Ed25519 key; the message says which, and how to make one."""


class Ed25519Signer:
    """A `joulie.domain.accounting.journal.Signer`.

    Args:
        file: PEM file with the private key, without a password.

    Raises:
        KeyFileError: the file cannot be used.
    """

    def __init__(self, file: Path) -> None:
        try:
            key = load_pem_private_key(file.read_bytes(), password=None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise KeyFileError(f"{file}: {error}; make a key by: openssl genpkey -algorithm ed25519") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyFileError(f"{file}: not an Ed25519 key; make one by: openssl genpkey -algorithm ed25519")
        self._key = key

    @property
    def public_key(self) -> str:
        """The raw public key in base64."""
        return _text(self._key.public_key())

    def sign(self, message: bytes) -> str:
        """The signature of a message, in base64."""
        return base64.b64encode(self._key.sign(message)).decode()


def read_public_key(file: Path) -> str:
    """The key of a PEM file, as `Ed25519Signer.public_key` writes it; the file may hold the public or the private key.

    Raises:
        KeyFileError: the file cannot be used.
    """
    try:
        content = file.read_bytes()
        if b"PRIVATE KEY" in content:
            return Ed25519Signer(file).public_key
        key = load_pem_public_key(content)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{file}: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(f"{file}: not an Ed25519 key")
    return _text(key)


def verify_signature(public_key: str, message: bytes, signature: str) -> bool:
    """Whether a signature of a message is that of a key; malformed ones are not."""
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key, validate=True))
        key.verify(base64.b64decode(signature, validate=True), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _text(key: Ed25519PublicKey) -> str:
    return base64.b64encode(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()
