"""Work for NVIDIA GPUs that needs nothing but their driver: keeps the first one busy until it is killed.

Source: CUDA driver API reference; PTX instruction set.
"""

import ctypes
import sys

PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry multiply(.param .u32 rounds, .param .u64 result)
{
  .reg .pred %again;
  .reg .u32 %left;
  .reg .u64 %to;
  .reg .f32 %a, %b, %c, %d;
  ld.param.u32 %left, [rounds];
  ld.param.u64 %to, [result];
  mov.f32 %a, 0f3F000000;
  mov.f32 %b, 0f3E800000;
  mov.f32 %c, 0f3F400000;
  mov.f32 %d, 0f3E000000;
ROUND:
  fma.rn.f32 %a, %a, %b, %c;
  fma.rn.f32 %b, %b, %c, %d;
  fma.rn.f32 %c, %c, %d, %a;
  fma.rn.f32 %d, %d, %a, %b;
  sub.u32 %left, %left, 1;
  setp.ne.u32 %again, %left, 0;
  @%again bra ROUND;
  st.global.f32 [%to], %d;
  ret;
}
\0"""

BLOCKS, THREADS, ROUNDS = 2048, 512, 20_000
"""A launch takes some 10 ms on a large GPU, so that a kill acts soon."""


def main() -> None:
    """Multiply on the first GPU."""
    driver = _Driver()
    context, module, function, result = (ctypes.c_void_p() for _ in range(4))
    driver.call("cuInit", 0)
    driver.call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
    driver.call("cuModuleLoadData", ctypes.byref(module), PTX)
    driver.call("cuModuleGetFunction", ctypes.byref(function), module, b"multiply")
    driver.call("cuMemAlloc_v2", ctypes.byref(result), ctypes.c_size_t(4))
    rounds = ctypes.c_uint(ROUNDS)
    arguments = (ctypes.c_void_p * 2)(
        *(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in (rounds, result))
    )
    sys.stdout.write("busy\n")
    sys.stdout.flush()
    while True:
        driver.call("cuLaunchKernel", function, BLOCKS, 1, 1, THREADS, 1, 1, 0, None, arguments, None)
        driver.call("cuCtxSynchronize")


class _Driver:
    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            raise RuntimeError(f"{function}: error {code}")


if __name__ == "__main__":
    main()
