"""Who asks Prometheus, and which server is trusted. Secrets are in files, and stay out of every message."""

from __future__ import annotations

import base64
import ssl
from dataclasses import dataclass
from pathlib import Path

from joulie.adapters.prometheus.answers import PrometheusError


@dataclass(frozen=True)
class PrometheusAuth:
    """How to authenticate; None where it is not needed. Give a token or a user, not both.

    Attributes:
        bearer_token_file: read anew for every request: tokens of service accounts change every hour.
        username: for basic authentication.
        password_file: as `bearer_token_file`.
        ca_file: PEM certificates of the authorities that are trusted; the system's by default.
        client_cert_file: PEM certificate that the client shows.
        client_key_file: its key; in `client_cert_file` by default.
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
        """The header that says who asks; empty where nobody in particular does.

        Raises:
            PrometheusError: a file cannot be read, or holds no secret.
        """
        if self.bearer_token_file is not None:
            return {"authorization": f"Bearer {_secret(self.bearer_token_file)}"}
        if self.username is not None and self.password_file is not None:
            user = f"{self.username}:{_secret(self.password_file)}".encode()
            return {"authorization": f"Basic {base64.b64encode(user).decode()}"}
        return {}

    def tls_context(self) -> ssl.SSLContext:
        """How to check the server's certificate, and which one to show it.

        Raises:
            PrometheusError: a file cannot be read, or holds no certificate or key.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.client_cert_file is not None:
                context.load_cert_chain(self.client_cert_file, self.client_key_file)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            files = ", ".join(str(file) for file in (self.ca_file, self.client_cert_file, self.client_key_file) if file)
            raise PrometheusError(f"TLS files of Prometheus ({files}): {error}") from error
        return context


def _secret(file: Path) -> str:
    try:
        secret = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PrometheusError(f"secret of Prometheus: {error}") from None
    if not secret or not secret.isprintable():
        raise PrometheusError(f"secret of Prometheus: {file} must hold one line of text")
    return secret
