"""Typed decorators over Numba's compiler, with an on-disk cache that is invalidated by every source change.

Numba keys its cache by the file of the decorated function alone: it would miss a change in a *called* function, or a
constant, of another file. So the cache lives in a folder named by a hash of every source file that they can come from.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
from numba.extending import register_jitable
from platformdirs import user_cache_path

from joulie.domain import marginal

P = ParamSpec("P")
R = TypeVar("R")

_DOMAIN = Path(marginal.__file__).resolve().parent
_LAB = Path(__file__).resolve().parent.parent

COMPILED_SOURCES = (
    (_DOMAIN, "hardware/*.py"),
    (_DOMAIN, "lifetimes.py"),
    (_DOMAIN, "marginal.py"),
    (_DOMAIN, "power/cpu.py"),
    (_DOMAIN, "quantities.py"),
    (_DOMAIN, "scheduling/scores.py"),
    (_DOMAIN, "scoring/*.py"),
    (_DOMAIN, "units.py"),
    (_LAB, "adapters/published/openb.py"),
    (_LAB, "benchmarks/gpu_sharing/*.py"),
    (_LAB, "simulation/compiled.py"),
    (_LAB, "simulation/engine/*.py"),
    (_LAB, "simulation/native/*kernels.py"),
    (_LAB, "simulation/native/nodes.py"),
    (_LAB, "simulation/published.py"),
    (_LAB, "simulation/schedulers.py"),
    (_LAB, "simulation/trace.py"),
    (_LAB, "simulation/workload.py"),
)
"""Folders and patterns of the files that compiled code and its constants come from."""


def _cache_folder() -> Path:
    digest = hashlib.sha256(numba.__version__.encode())
    for folder, pattern in COMPILED_SOURCES:
        for source in sorted(folder.glob(pattern)):
            digest.update(source.read_bytes())
    return user_cache_path("joulie") / "compiled" / digest.hexdigest()[:16]


if "NUMBA_CACHE_DIR" not in os.environ:
    setattr(numba.config, "CACHE_DIR", str(_cache_folder()))  # noqa: B010 - the stubs do not name it


_OPTIONS: dict[str, Any] = {"cache": True, "error_model": "numpy", "forceinline": True}
_WITHOUT_REFERENCE_COUNTS = _OPTIONS | {"_nrt": False}
_ALLOCATING = _OPTIONS | {"_nrt": True}
_INNER = _WITHOUT_REFERENCE_COUNTS | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function`, called from Python, to machine code on first use; IEEE semantics kept, cached on disk.

    Such a function allocates nothing: its caller owns all arrays. Numba's reference counting is therefore switched
    off; with it, runs take five times as long (an atomic operation for each array of a state tuple at each call).
    """
    return cast("Callable[P, R]", numba.njit(**_WITHOUT_REFERENCE_COUNTS)(function))


def compiled_inner(function: Callable[P, R]) -> Callable[P, R]:
    """Like `compiled`, for functions that are called by compiled code only.

    Leaving out the wrappers that unpack arguments from Python objects makes compilation several times faster.
    """
    return cast("Callable[P, R]", numba.njit(**_INNER)(function))


def compiled_allocating(function: Callable[P, R]) -> Callable[P, R]:
    """Like `compiled`, for functions that allocate arrays, or call a `Generator` method that does."""
    return cast("Callable[P, R]", numba.njit(**_ALLOCATING)(function))


def compilable(function: Callable[P, R]) -> Callable[P, R]:
    """Allow compiled code to call the pure Python `function` of the domain; returns it unchanged."""
    return register_jitable(function)
