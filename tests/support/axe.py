"""axe-core in a page."""

import gzip
from pathlib import Path
from typing import Any

AXE = gzip.decompress((Path(__file__).parents[1] / "ui" / "axe-core-4.14.1" / "axe.min.js.gz").read_bytes()).decode()
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


def violations(browser: Any, url: str) -> list[tuple[Any, ...]]:
    """What axe finds on a page at three widths, light and dark."""
    found = []
    for width in (390, 1280, 3840):
        for dark in (False, True):
            browser.open(url, width, dark=dark)
            browser.evaluate(AXE)
            listed = browser.evaluate(
                f"axe.run({{runOnly: {RULES}}}).then(r => r.violations.map(v =>"
                " [v.id, v.nodes.slice(0, 3).map(n => n.html)]))"
            )
            found += [(width, dark, *violation) for violation in listed]
    return found
