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


def test_every_constant_of_compiled_code_comes_from_a_covered_file() -> None:
    """A constant is compiled in: a change of it must not be missed."""
    covered = {source for folder, pattern in COMPILED_SOURCES for source in folder.glob(pattern)}
    compiling = [path for path in covered if "joulie_lab.simulation.compiled" in path.read_text(encoding="utf-8")]
    modules = {
        node.module
        for path in compiling
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("joulie")
        if any(name.name.isupper() for name in node.names)
    }
    assert {name for name in modules if Path(inspect.getfile(importlib.import_module(name))) not in covered} == set()
