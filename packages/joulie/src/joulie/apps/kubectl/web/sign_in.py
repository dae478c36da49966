"""Keeps the pages in the cluster to its users: a pasted token, a bearer token, or the header of an OIDC proxy.

Sessions are cookies that only this host gets (``__Host-``), that scripts cannot read (HttpOnly) and that requests from
other sites do not carry (SameSite=Strict). The two forms, signing in and out, need a value that only a page of this
host knows, so that no other site can sign anybody in or out.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from joulie.adapters.kubernetes.access import UserInfo
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.apps.kubectl.web import pages
from joulie.apps.kubectl.web.access import LOGIN_PATH, with_security_headers
from joulie.apps.kubectl.web.metrics import WebMetrics
from joulie.apps.kubectl.web.readers import Readers
from joulie.apps.kubectl.web.sessions import Sessions
from joulie.program.http import AsgiApp, Receive, Scope, Send

LOGOUT_PATH = "/logout"
READER = "joulie.reader"
"""Key of the `Reader` in the scope of a request."""
SESSION_COOKIE = "__Host-joulie_session"
FORM_COOKIE = "__Host-joulie_form"
_PUBLIC = "/static/"
_API = "/api/"
_MAX_FORM_BYTES = 32 * 1024
_MAX_NAME = 253
_MAX_GROUPS = 1000
_AUTHENTICATED = "system:authenticated"
_RESERVED = "system:"


class Reader(NamedTuple):
    """Who sends a request.

    Attributes:
        user: the user, as the API server knows it.
        form_value: value that the form for signing out must contain; empty without a session of this program.
    """

    user: UserInfo
    form_value: str = ""


@dataclass(frozen=True)
class ProxyHeaders:
    """Headers in which an OIDC proxy says who sends a request.

    Attributes:
        user: header with the user's name.
        groups: header with the groups, separated by commas.
        user_prefix: what the API server's --oidc-username-prefix is.
        groups_prefix: what its --oidc-groups-prefix is.
    """

    user: str
    groups: str
    user_prefix: str = ""
    groups_prefix: str = ""

    def user_of(self, headers: Headers) -> UserInfo:
        """The user.

        Raises:
            SignInError: there is not exactly one, or it or a group is reserved for the cluster.
        """
        names = headers.getlist(self.user)
        if len(names) != 1 or not names[0].strip() or len(names[0]) > _MAX_NAME:
            raise SignInError(401, f"the proxy must send one header {self.user}")
        user = self.user_prefix + names[0].strip()
        listed = (group.strip() for line in headers.getlist(self.groups) for group in line.split(","))
        groups = [self.groups_prefix + group for group in listed if group]
        if len(groups) > _MAX_GROUPS:
            raise SignInError(403, f"the proxy sends more than {_MAX_GROUPS} groups")
        for name in (user, *groups):
            # The API server gives such names to nobody from outside: system:masters may do everything.
            if name.startswith(_RESERVED):
                raise SignInError(403, f"{name} is reserved: the proxy must not send names that begin with {_RESERVED}")
        return UserInfo(username=user, groups=[*groups, _AUTHENTICATED])


class SignInError(Exception):
    """A request whose sender is not accepted.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class ClusterAccess:
    """ASGI application that passes on requests of the cluster's users, and lets others sign in.

    Args:
        app: application to protect; it finds the `Reader` in the scope.
        readers: knows who sends a token.
        sessions: sessions of those who signed in.
        metrics: metrics of signing in.
        proxy: headers to trust; None to trust none. Only for a server that accepts nobody but the proxy.
    """

    def __init__(
        self,
        app: AsgiApp,
        readers: Readers,
        sessions: Sessions,
        metrics: WebMetrics,
        proxy: ProxyHeaders | None = None,
    ) -> None:
        self._app = app
        self._readers = readers
        self._sessions = sessions
        self._metrics = metrics
        self._proxy = proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        headers = Headers(scope=scope)
        try:
            response = await self._response(scope, headers, receive)
        except SignInError as error:
            response = PlainTextResponse(f"{error}\n", error.status)
        except KubernetesError as error:
            response = PlainTextResponse(f"the API server cannot be asked who you are: {error}\n", 503)
        await (self._app if response is None else response)(scope, receive, with_security_headers(send))

    async def _response(self, scope: Scope, headers: Headers, receive: Receive) -> Response | None:
        """The response to a request that is not passed on; None for one that is."""
        method, path = scope["method"], scope["path"]
        if method == "POST" and path in {LOGIN_PATH, LOGOUT_PATH} and self._proxy is None:
            _check_origin(headers)
            form = await _form(receive)
            return await (self._sign_in(headers, form) if path == LOGIN_PATH else self._sign_out(headers, form))
        if method not in {"GET", "HEAD"}:
            return PlainTextResponse("These pages are read only: use GET.\n", 405)
        if path == LOGIN_PATH and self._proxy is None:
            return _login_page()
        public = path.startswith(_PUBLIC)
        reader = None if public else await self._reader(headers)
        if reader is not None:
            scope[READER] = reader
        if public or reader is not None:
            return None
        if path.startswith(_API) or self._proxy is not None:
            return PlainTextResponse("sign in, or send a token of the cluster: Authorization: Bearer ...\n", 401)
        return RedirectResponse(LOGIN_PATH, 303)

    async def _reader(self, headers: Headers) -> Reader | None:
        if self._proxy is not None:
            return Reader(self._proxy.user_of(headers))
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            user = await self._readers.user_of(bearer.strip())
            return None if user is None else Reader(user)
        identifier = cookie_parser(headers.get("cookie", "")).get(SESSION_COOKIE, "")
        session = self._sessions.find(identifier)
        if session is None:
            return None
        user = await self._readers.user_of(session.token)
        if user is None:
            self._sessions.end(identifier)
            return None
        return Reader(user, session.form_value)

    async def _sign_in(self, headers: Headers, form: dict[str, str]) -> Response:
        expected = cookie_parser(headers.get("cookie", "")).get(FORM_COOKIE, "")
        if not expected or not _same(form.get("form", ""), expected):
            return _login_page("The form was too old: try again.", 403)
        token = "".join(form.get("token", "").split())
        user = await self._readers.user_of(token) if token else None
        self._metrics.signed_in(accepted=user is not None)
        if user is None:
            return _login_page("The cluster does not accept this token: it may have expired.", 401)
        response = RedirectResponse("/", 303)
        _set_cookie(response, SESSION_COOKIE, self._sessions.begin(token))
        response.delete_cookie(FORM_COOKIE, secure=True, httponly=True, samesite="strict")
        return response

    async def _sign_out(self, headers: Headers, form: dict[str, str]) -> Response:
        identifier = cookie_parser(headers.get("cookie", "")).get(SESSION_COOKIE, "")
        session = self._sessions.find(identifier)
        if session is not None and not _same(form.get("form", ""), session.form_value):
            raise SignInError(403, "this form does not belong to your session: reload the page")
        self._sessions.end(identifier)
        response = RedirectResponse(LOGIN_PATH, 303)
        response.delete_cookie(SESSION_COOKIE, secure=True, httponly=True, samesite="strict")
        return response


def _login_page(problem: str = "", status: int = 200) -> Response:
    value = secrets.token_urlsafe(32)
    page = pages.render("login.html", path=LOGIN_PATH, reader=None, problem=problem, form_value=value)
    response = HTMLResponse(page, status)
    _set_cookie(response, FORM_COOKIE, value)
    return response


def _set_cookie(response: Response, name: str, value: str) -> None:
    response.set_cookie(name, value, secure=True, httponly=True, samesite="strict")


def _same(shown: str, expected: str) -> bool:
    return secrets.compare_digest(shown.encode(), expected.encode())


def _check_origin(headers: Headers) -> None:
    """Refuse forms that other sites send.

    Raises:
        SignInError: the request comes from another site.
    """
    site, origin = headers.get("sec-fetch-site", "same-origin"), headers.get("origin")
    other_host = origin is not None and urlsplit(origin).netloc != headers.get("host", "")
    if site not in {"same-origin", "none"} or other_host:
        raise SignInError(403, "this form was sent by another site")


async def _form(receive: Receive) -> dict[str, str]:
    """Fields of a form.

    Raises:
        SignInError: it is too long, or not a form.
    """
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > _MAX_FORM_BYTES:
            raise SignInError(413, f"a form may have {_MAX_FORM_BYTES} bytes at most")
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=10)
    except ValueError:
        raise SignInError(400, "this is not a form") from None
    return {name: values[-1] for name, values in fields.items()}
