"""Authentication of requests to Prometheus, and TLS trust. Secrets are in files and never part of a message."""

from __future__ import annotations

import base64
import ssl
from dataclasses import dataclass
from pathlib import Path

from joulie.adapters.prometheus.answers import PrometheusError
from joulie.http_client import new_tls_context, tls_context


@dataclass(frozen=True)
class PrometheusAuth:
    """Credentials and trusted authorities, None if not used. A bearer token excludes a user name.

    Attributes:
        bearer_token_file: file with a bearer token, read for every request: service account tokens change every hour.
        username: user name for basic authentication.
        password_file: file with that user's password, read for every request.
        ca_file: PEM certificates of trusted authorities; None for the system's.
        client_cert_file: PEM certificate of the client.
        client_key_file: PEM key of that certificate; None if `client_cert_file` contains it.
    """

    bearer_token_file: Path | None = None
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    client_cert_file: Path | None = None
    client_key_file: Path | None = None

    def __post_init__(self) -> None:
        if self.bearer_token_file is not None and self.username is not None:
            raise ValueError("Prometheus: give either a bearer token or a user name, not both")
        if (self.username is None) != (self.password_file is None):
            raise ValueError("Prometheus: a user name and a password file go together")
        if self.client_key_file is not None and self.client_cert_file is None:
            raise ValueError("Prometheus: a client key needs its certificate")

    def headers(self) -> dict[str, str]:
        """Authorization header; empty without credentials.

        Raises:
            PrometheusError: a file cannot be read, or does not contain a secret.
        """
        if self.bearer_token_file is not None:
            return {"authorization": f"Bearer {_secret(self.bearer_token_file)}"}
        if self.username is not None and self.password_file is not None:
            user = f"{self.username}:{_secret(self.password_file)}".encode()
            return {"authorization": f"Basic {base64.b64encode(user).decode()}"}
        return {}

    def tls_context(self) -> ssl.SSLContext:
        """TLS context with the trusted authorities and the client's certificate.

        Raises:
            PrometheusError: a file cannot be read, or does not contain a certificate or key.
        """
        try:
            if self.client_cert_file is None:
                return tls_context(self.ca_file)
            context = new_tls_context(self.ca_file)
            context.load_cert_chain(self.client_cert_file, self.client_key_file)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            files = ", ".join(str(file) for file in (self.ca_file, self.client_cert_file, self.client_key_file) if file)
            raise PrometheusError(f"invalid TLS files of Prometheus ({files}): {error}") from error
        return context


def _secret(file: Path) -> str:
    try:
        secret = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PrometheusError(f"cannot read the secret of Prometheus: {error}") from None
    if not secret or not secret.isprintable():
        raise PrometheusError(f"invalid secret of Prometheus: {file} must contain one line of text")
    return secret
