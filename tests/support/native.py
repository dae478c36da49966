"""Compiles the C sources in `tests/native` into libraries that the tests load."""

import subprocess
from pathlib import Path

_SOURCES = Path(__file__).parents[1] / "native"
_OPTIONS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC")


def compile_library(source: str, library: Path) -> Path:
    """Compile a source, named without its ending; returns the library."""
    # No soname: loaded by its path, it must not answer to a real library's name.
    subprocess.run(["cc", *_OPTIONS, "-o", library, _SOURCES / f"{source}.c"], check=True)
    return library
