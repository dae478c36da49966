"""Compiled code is cached by the content of every file that it comes from."""

import ast
import importlib
import inspect
from pathlib import Path

from joulie_lab.simulation.compiled import COMPILED_SOURCES

LAB = Path(inspect.getfile(importlib.import_module("joulie_lab"))).parent


def test_every_pattern_finds_its_files() -> None:
    assert [pattern for folder, pattern in COMPILED_SOURCES if not list(folder.glob(pattern))] == []


def test_every_module_with_compiled_functions_is_covered() -> None:
    covered = {source for folder, pattern in COMPILED_SOURCES for source in folder.glob(pattern)}
    # Parsing only those that may import it takes a hundredth of the time.
    sources = {path: path.read_text(encoding="utf-8") for path in LAB.rglob("*.py")}
    compiling = {
        path
        for path, source in sources.items()
        if "joulie_lab.simulation.compiled" in source
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module == "joulie_lab.simulation.compiled"
    }
    assert compiling
    assert compiling <= covered
