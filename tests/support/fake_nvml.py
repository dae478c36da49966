"""Builds `tests/native/fake_nvml.c` and steers it; see there for the fields."""

import ctypes
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "native/fake_nvml.c"
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED = 3, 4, 9, 15, 16


def build(folder: Path) -> Path:
    """Compile the library as ``libnvidia-ml.so.1`` into `folder`, which LD_LIBRARY_PATH can then name."""
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(  # no soname: loaded by its path, it must not answer to the real library's name
        ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", library, SOURCE], check=True
    )
    return library


class FakeNvml:
    """The library, loaded into this process."""

    def __init__(self, library: Path) -> None:
        self.path = library
        self._library = ctypes.CDLL(str(library))
        self._library.fake_read.restype = ctypes.c_longlong

    def reset(self, gpus: int) -> None:
        """A working driver with GPUs of 200 to 800 W, 700 W by default."""
        self._library.fake_reset(gpus)

    def driver(self, code: int) -> None:
        """What initialisation and counting answer from now on."""
        self._library.fake_driver(code)

    def unload(self) -> None:
        """The driver was reloaded: connections are gone."""
        self._library.fake_unload()

    @property
    def connections(self) -> int:
        return int(self._library.fake_connections())

    def write(self, gpu: int, **fields: int) -> None:
        for name, value in fields.items():
            self._library.fake_write(gpu, name.encode(), ctypes.c_longlong(value))

    def read(self, gpu: int, name: str) -> int:
        return int(self._library.fake_read(gpu, name.encode()))
