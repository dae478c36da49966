"""Builds the fake GPU libraries in `tests/native` and steers them; see `fake_gpu.h` for fields and settings."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.native import compile_library

LIBRARIES = {"fake_nvml": "libnvidia-ml.so.1", "fake_amdsmi": "libamd_smi.so"}

NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED, MISMATCH = 3, 4, 9, 15, 16, 18
"""Return codes of NVML."""
SMI_NOT_SUPPORTED, SMI_NO_PERM, SMI_IO, SMI_INIT_ERROR, SMI_BUSY = 2, 10, 12, 18, 30
"""Status codes of AMD SMI."""


def build(folder: Path, source: str) -> Path:
    """Compile a fake library under the name of the real one into `folder`."""
    return compile_library(source, folder / LIBRARIES[source])


@dataclass
class FakeGpus:
    """A fake library, loaded into this process; the processes of the agent share its state.

    Attributes:
        device: file that a process holds open while it is connected to the driver.
    """

    library: ctypes.CDLL
    device: Path

    def reset(self, gpus: int) -> None:
        """A working driver with GPUs of 200 to 800 W, 700 W by default."""
        self.library.fake_reset(gpus)

    def set(self, **settings: int) -> None:
        """Change settings of the driver."""
        for name, value in settings.items():
            self.library.fake_set(name.encode(), value)

    def get(self, name: str) -> int:
        """A setting or counter of the driver."""
        return int(self.library.fake_get(name.encode()))

    def reload(self) -> None:
        """Load the driver anew: connections from before are void."""
        self.set(reloads=self.get("reloads") + 1)

    def write(self, gpu: int, **fields: int) -> None:
        """Change fields of a GPU."""
        for name, value in fields.items():
            self.library.fake_write(gpu, name.encode(), ctypes.c_longlong(value))

    def read(self, gpu: int, name: str) -> int:
        """A field of a GPU."""
        return int(self.library.fake_read(gpu, name.encode()))

    def opened_by(self, pid: int | None) -> bool:
        """Whether a process has the driver's device file open."""
        links = Path(f"/proc/{pid}/fd").iterdir() if pid is not None else ()
        return any(link.exists() and link.resolve() == self.device for link in links)


def install(library: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: int = 2) -> FakeGpus:
    """Let processes that are started from now on find a fake library, whose state is in `folder`."""
    device = folder / "nvidiactl"
    device.touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    monkeypatch.setenv("FAKE_GPU_STATE", str(folder / "state"))
    monkeypatch.setenv("FAKE_GPU_DEVICE", str(device))
    private = folder / f"own-{library.name}"  # loaded once more for each test: its state is mapped when it is loaded
    private.write_bytes(library.read_bytes())
    loaded = ctypes.CDLL(str(private))
    loaded.fake_read.restype = ctypes.c_longlong
    fake = FakeGpus(loaded, device.resolve())
    fake.reset(gpus)
    return fake
