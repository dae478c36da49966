"""Pages name tests as evidence: each of them exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(test_\w+)`")
PAGES = {path: NAMED.findall(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "docs").rglob("*.md"))}


@pytest.mark.parametrize("path", [path for path, named in PAGES.items() if named], ids=lambda path: path.stem)
def test_tests_that_a_page_names_exist(path: Path) -> None:
    files = [file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py")]
    defined = {name for text in files for name in re.findall(r"def (test_\w+)\(", text)}
    assert set(PAGES[path]) <= defined
