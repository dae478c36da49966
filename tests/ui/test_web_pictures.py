"""The pages as pictures: at three widths, dark and light, and at 200 % zoom, compared with the committed ones.

The font is bundled (that of matplotlib), clock, time zone and data are fixed. One pixel of a thousand may differ from
the reference by more than a shade: versions of Chromium smooth edges differently. After a wanted change, run it with
WRITE_PICTURES=1, then look at each picture.
"""

import base64
import io
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from joulie.adapters.kubernetes.errors import NotFoundError
from joulie.apps.kubectl.web.watching import KEPT, ClusterView, Visibility
from joulie.program.http import Server
from support.web_stage import energy_app, filled, fleet, pages_of, programs_app, served

pytestmark = pytest.mark.ui

NOW_S = datetime(2026, 2, 2, 3, 0, tzinfo=UTC).timestamp()
FONT = Path(mpl.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"
PICTURES = Path(__file__).parent / "pictures"
PAGES = {"fleet": "/", "node": "/nodes/node-0002", "health": "/health", "pods": "/pods?namespace=team-4",
         "energy": "/energy?days=7", "plans": "/plans"}  # fmt: skip
VIEWS = {"phone": (390, 844, False, 1), "laptop-dark": (1280, 800, True, 1), "wall": (3840, 1080, False, 1),
         "zoom": (1280, 800, False, 2)}  # fmt: skip
SHOWN = [
    *((page, view) for page in PAGES for view in ("phone", "laptop-dark")),
    *((page, "wall") for page in ("fleet", "energy")),
    *((page, "zoom") for page in ("pods", "plans")),
]
SHADES = 24
"""Difference of a colour channel, of 255, below which a pixel counts as the same."""
TOLERANCE = 0.001
"""Share of pixels that may differ."""


class NoCluster:
    """A client of an API server in which no program leads."""

    def __init__(self) -> None:
        self.connection = SimpleNamespace(bearer_token=self.token)

    async def token(self) -> str:
        return "token"

    async def get(self, resource: Any, name: str, namespace: str | None = None) -> Any:
        raise NotFoundError(404, "NotFound", f"{resource.plural} {namespace}/{name} not found")


@pytest.fixture(scope="module")
def stage(tmp_path_factory, browser):
    cluster = filled(fleet(40, 6, "2026-02-02T02:59:00Z"), lambda: NOW_S)
    energy = energy_app(tmp_path_factory.mktemp("pictures"), now_s=NOW_S)

    @asynccontextmanager
    async def make() -> AsyncIterator[Any]:
        view = ClusterView(cluster, Visibility(frozenset(resource.plural for resource in KEPT)))
        async with (
            Server(programs_app(energy), ("127.0.0.1", 0)) as programs,
            pages_of(view, NoCluster(), f"http://127.0.0.1:{programs.port}") as running,
        ):
            yield running

    with served(make) as running:
        browser.call("Emulation.setTimezoneOverride", timezoneId="Europe/Berlin")
        browser.call("Emulation.setLocaleOverride", locale="en-GB")
        browser.call("Page.setBypassCSP", enabled=True)
        # Those of a phone fade in and out.
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        browser.open(running.login, 1280)
        yield running
        browser.call("Emulation.setScrollbarsHidden", hidden=False)
        browser.call("Page.setBypassCSP", enabled=False)
        browser.call("Emulation.setLocaleOverride")
        browser.call("Emulation.setTimezoneOverride", timezoneId="")


def picture(browser: Any, url: str, width: int, height: int, dark: bool, zoom: int) -> Image.Image:
    """What the window shows."""
    # Zoom in a browser is a window with fewer CSS pixels, each of which is larger.
    browser.open(url, width // zoom, height // zoom, dark=dark, scale=zoom)
    font = base64.b64encode(FONT.read_bytes()).decode()
    browser.evaluate(
        f"(async () => {{ const font = new FontFace('Bundled', 'url(data:font/ttf;base64,{font})');"
        " document.fonts.add(await font.load()); const style = document.createElement('style');"
        " style.textContent = '* { font-family: Bundled !important; caret-color: transparent !important;"
        " content-visibility: visible !important }';"
        " document.head.append(style); redraw();"
        " await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))); })()"
    )
    return Image.open(io.BytesIO(browser.picture())).convert("RGB")


@pytest.mark.parametrize(("page", "view"), SHOWN)
def test_pages_look_as_they_did(browser, stage, tmp_path, page, view):
    found = picture(browser, stage.url + PAGES[page], *VIEWS[view])
    width, *_, zoom = VIEWS[view]
    assert browser.evaluate("document.documentElement.scrollWidth") <= width // zoom
    file = PICTURES / f"{page}-{view}.png"
    if os.environ.get("WRITE_PICTURES"):
        PICTURES.mkdir(exist_ok=True)
        found.quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)
        return
    wanted = Image.open(file).convert("RGB")
    assert found.size == wanted.size
    apart = np.abs(np.asarray(found, dtype=np.int16) - np.asarray(wanted, dtype=np.int16)).max(axis=2) > SHADES
    if apart.mean() > TOLERANCE:
        found.save(tmp_path / file.name)
        Image.fromarray(apart).save(tmp_path / f"apart-{file.name}")
    assert apart.mean() <= TOLERANCE, f"see {tmp_path}"
