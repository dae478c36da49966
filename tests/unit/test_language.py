"""Words that readers of this field stumble over stay out of code, pages and chart; docs/glossary.md has the others."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("packages", "docs", "deploy")
SUFFIXES = {".py", ".md", ".yaml", ".yml", ".json", ".html", ".js", ".css", ".tpl", ".txt", ".toml"}
# What was written, and what is written instead.
WORDS = {
    "is no Kubernetes quantity": "invalid quantity '3x': ...",
    "in flocks": "in bursts",
    "least level": "minimum log level",
    "said by": "name who states it",
    "wants to be left": "is left alone",
    "gives its place": "is evicted",
    "can hurt": "with timeouts and validation",
    "one term of leadership": "while this replica leads",
    "speak of": "apply to",
    "surroundings": "facility",
    "E-wins": "seeds won on energy",
    "Books.ask": "AsyncLedger.call",
    "UNSAID_": "DEFAULT_MILLI_CPU_REQUEST",
    "said_or_usual": "nonzero_requests",
    "WaitingRoom": "PendingQueue",
    "_lively": "mark_dirty",
    "_roomier": "freed_nodes",
    "desk.board": "latest_power_report",
    "that room is no gang's": "capacity reserved for pending pods",
}


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The text of each file by its path, blanks as one blank so that no phrase hides in a line break."""
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES)
    return {
        str(path.relative_to(ROOT)): re.sub(r"\s+", " ", path.read_text(encoding="utf-8", errors="replace")).lower()
        for path in paths
        if path.is_file() and not {"node_modules", "__pycache__", "dist", "build"} & {*path.parts}
    }


@pytest.mark.parametrize("word", WORDS)
def test_a_word_that_had_to_be_decoded_is_gone(texts: dict[str, str], word: str) -> None:
    found = [path for path, text in texts.items() if word.lower() in text]
    assert found == [], f"write {WORDS[word]!r}"


def test_the_texts_are_there(texts: dict[str, str]) -> None:
    assert {path.partition("/")[0] for path in texts} == {*FOLDERS}
    assert len(texts) > 500
