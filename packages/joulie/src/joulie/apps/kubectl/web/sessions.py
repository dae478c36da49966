"""Sessions of readers who signed in with a token, kept in the memory of the program: cookies hold no token."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

_MAX_SESSIONS = 10_000
_IDLE_S = 3600.0
"""Time without a request after which a session ends, s."""


@dataclass
class Session:
    """One signed-in reader.

    Attributes:
        token: token that was pasted, which is reviewed again from time to time.
        form_value: value that forms of this session must contain.
        ends_s: when the session ends at the latest, s since the epoch.
        used_s: time of the last request, s since the epoch.
    """

    token: str
    form_value: str
    ends_s: float
    used_s: float

    def __repr__(self) -> str:
        return "Session(...)"


class Sessions:
    """Sessions by the hash of the identifier in the cookie, so that a look at the memory gives no valid cookie.

    Args:
        max_age_s: how long a session lasts at most, s.
        now_s: current time, s since the epoch.
    """

    def __init__(self, max_age_s: float, now_s: Callable[[], float]) -> None:
        self._max_age_s = max_age_s
        self._now_s = now_s
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def begin(self, token: str) -> str:
        """Begin a session, and return the value of its cookie. Beyond the maximum number, the least used one ends."""
        identifier = secrets.token_urlsafe(32)
        now_s = self._now_s()
        self._sessions[_hashed(identifier)] = Session(token, secrets.token_urlsafe(32), now_s + self._max_age_s, now_s)
        if len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return identifier

    def find(self, identifier: str) -> Session | None:
        """The session of a cookie; None if there is none, or no longer."""
        key, now_s = _hashed(identifier), self._now_s()
        session = self._sessions.get(key)
        if session is None:
            return None
        if now_s >= session.ends_s or now_s - session.used_s >= _IDLE_S:
            del self._sessions[key]
            return None
        session.used_s = now_s
        self._sessions.move_to_end(key)
        return session

    def end(self, identifier: str) -> None:
        """End a session, if there is one."""
        self._sessions.pop(_hashed(identifier), None)


def _hashed(identifier: str) -> str:
    return hashlib.sha256(identifier.encode()).hexdigest()
