"""Keeps the aggregated API's server configured as the API server publishes it, and its certificate trusted."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.resources import API_SERVICES, CONFIG_MAPS
from joulie.apps.kubectl.web.aggregated import (
    API_SERVICE,
    CONFIG_NAME,
    CONFIG_NAMESPACE,
    FrontProxy,
    FrontProxyError,
)
from joulie.program.http import AsgiApp, Server, TlsFiles
from joulie.waiting import set_within

CHECK_S = 60.0
"""Interval at which authority and registration are checked, s: authorities are rotated, APIServices made again."""
_RETRY_S = 5.0
"""The same interval after a failure, s."""

_log = logging.getLogger(__name__)


class Aggregation:
    """Server of the aggregated API.

    Args:
        client: Kubernetes client of the program.
        app_of: the application for an API server that is known by this.
        address: host and port.
        files: certificate and key of the server.
        registers: whether to write the certificate to the APIService; False where an authority is registered.
        folder: folder for the front proxy's authority, private to this program.
    """

    def __init__(
        self,
        client: KubeClient,
        app_of: Callable[[FrontProxy], AsgiApp],
        address: tuple[str, int],
        files: TlsFiles,
        folder: Path,
        *,
        registers: bool,
    ) -> None:
        self._client = client
        self._app_of = app_of
        self._address = address
        self._authority = folder / "front-proxy.crt"
        self._files = TlsFiles(files.certificate, files.key, self._authority)
        self._registers = registers
        self._problem = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until told to stop, with a server of its own for each authority: TLS cannot forget one."""
        proxy: FrontProxy | None = None
        while not stop.is_set():
            proxy = await self._known(proxy)
            if proxy is None:
                await set_within(stop, _RETRY_S if self._problem else CHECK_S)
                continue
            self._authority.write_text(proxy.authority, encoding="utf-8")
            async with Server(self._app_of(proxy), self._address, tls=self._files, stop=stop):
                known = proxy
                while not stop.is_set() and proxy == known:
                    await self._register()
                    await set_within(stop, _RETRY_S if self._problem else CHECK_S)
                    proxy = await self._known(known)

    async def _known(self, before: FrontProxy | None) -> FrontProxy | None:
        """What the API server says of itself; what it said before, if it does not say."""
        try:
            found = await self._client.get(CONFIG_MAPS, CONFIG_NAME, CONFIG_NAMESPACE)
            proxy = FrontProxy.read(found.data)
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=proxy.authority)
        except (KubernetesError, FrontProxyError, ssl.SSLError) as error:
            self._failed(error)
            return before
        return proxy

    async def _register(self) -> None:
        """Write the certificate to the APIService if it has another one."""
        if not self._registers:
            return
        try:
            bundle = base64.b64encode(self._files.certificate.read_bytes()).decode()
            found = await self._client.get(API_SERVICES, API_SERVICE)
            if found.spec.get("caBundle") != bundle:
                await self._client.patch(API_SERVICES, API_SERVICE, {"spec": {"caBundle": bundle}})
                _log.info("registered the certificate", extra={"apiservice": API_SERVICE})
        except (KubernetesError, OSError) as error:
            self._failed(error)
        else:
            self._problem = ""

    def _failed(self, error: Exception) -> None:
        if str(error) != self._problem:
            self._problem = str(error)
            _log.warning("aggregated API not served as it should be, retrying", extra={"problem": self._problem})
