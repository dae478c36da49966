"""Keeps the pages on loopback to the user who started them: one-time token, session cookie, check of Host.

Without the check of Host, a page of any site could reach the server by a name that it resolves to 127.0.0.1 (DNS
rebinding). The token in the printed URL is used up by the first request that shows it, since URLs stay in histories.
"""

from __future__ import annotations

import secrets
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from joulie.program.http import AsgiApp, Receive, Scope, Send

LOGIN_PATH = "/login"
COOKIE = "joulie_session"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_SECURITY_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        b" base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    # Not no-referrer: browsers would then send "Origin: null" with the forms of these pages.
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)
_RUN_AGAIN = "The link has been used, or belongs to another run. Run kubectl joulie web again and open its new link.\n"


def with_security_headers(send: Send) -> Send:
    """`send` with the content security policy and its companions added to each response."""

    async def secured(message: Scope) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_SECURITY_HEADERS]}
        await send(message)

    return secured


class LoopbackAccess:
    """ASGI application that passes on requests of the user who started the program, and refuses all others.

    Args:
        app: application to protect.

    Attributes:
        token: one-time token of the login URL; None once it was used.
    """

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self._session = secrets.token_urlsafe(32)
        self.token: str | None = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        refusal = self._refusal(scope, Headers(scope=scope))
        await (self._app if refusal is None else refusal)(scope, receive, with_security_headers(send))

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """The response to a request that is not passed on; None for one that is."""
        if headers.get("host", "").rpartition(":")[0] not in _LOOPBACK:
            return PlainTextResponse("This server answers to 127.0.0.1 and localhost only.\n", 421)
        if scope["method"] not in {"GET", "HEAD"}:
            return PlainTextResponse("These pages are read only: use GET.\n", 405)
        if scope["path"] == LOGIN_PATH:
            return self._login(scope)
        session = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        if not secrets.compare_digest(session.encode(), self._session.encode()):
            return PlainTextResponse(_RUN_AGAIN, 401)
        return None

    def _login(self, scope: Scope) -> Response:
        shown = parse_qs(scope.get("query_string", b"").decode(errors="replace")).get("token", [""])[0]
        if self.token is None or not secrets.compare_digest(shown.encode(), self.token.encode()):
            return PlainTextResponse(_RUN_AGAIN, 401)
        self.token = None
        response = RedirectResponse("/", 303)
        response.set_cookie(COOKIE, self._session, httponly=True, samesite="strict")
        return response
