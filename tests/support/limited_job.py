"""A job on a modelled GPU: it draws power and makes steps as far as the GPU's limits let it, and serves its steps.

A pod runs this file by itself, beside the driver of `tests/native`, on the GPU that the kubelet gave it.
"""

import ctypes
import http.server
import math
import os
import threading
import time

METRIC, PORT = "train_steps_total", 8000
NATURAL_W, STEPS_PER_S = 500.0, 10.0
"""Power and speed without a limit; `NATURAL_VARIABLE` of the environment may have another power."""
NATURAL_VARIABLE = "NATURAL_WATTS"
LARGEST_MHZ = 1980
"""SM clock without a lock."""
LIBRARY_VARIABLE = "DRIVER_LIBRARY"
"""Environment variable with the path of the driver's library."""
_TICK_S = 0.05


def power_w(limit_w: float, natural_w: float = NATURAL_W, clock: float = 1.0) -> float:
    """Power, W, under a limit and a maximum of the clock, as a share of the largest."""
    return min(natural_w * (0.4 + 0.6 * clock**3), 0.97 * limit_w)


def slowdown(limit_w: float, natural_w: float = NATURAL_W, clock: float = 1.0) -> float:
    """Time for the same work over that without either."""
    return math.exp(max(0.0, math.log(1.1 * natural_w / limit_w)) ** 2) * (0.9 + 0.1 / clock)


def _now_s() -> float:
    return time.time()  # noqa: TID251 - samples have the time of Prometheus


class Job:
    """The job on one GPU of the driver.

    Attributes:
        page: its /metrics. A sample has the time that it was true at, so that a late scrape does not look slow.
    """

    def __init__(self, driver: ctypes.CDLL, gpu: int, natural_w: float) -> None:
        driver.fake_read.restype = ctypes.c_longlong
        self._driver, self._gpu, self._natural_w = driver, gpu, natural_w
        self._steps, self._at_s = 0.0, _now_s()
        self.page = ""

    def work(self) -> None:
        """Work without an end."""
        while True:
            time.sleep(_TICK_S)
            limit_w = self._driver.fake_read(self._gpu, b"set_mw") / 1e3
            clock = (self._driver.fake_read(self._gpu, b"lock_mhz") or LARGEST_MHZ) / LARGEST_MHZ
            at = (limit_w, self._natural_w, clock)
            now_s = _now_s()
            passed_s, self._at_s = now_s - self._at_s, now_s
            self._steps += STEPS_PER_S / slowdown(*at) * passed_s
            self._driver.fake_write(self._gpu, b"power_mw", ctypes.c_longlong(round(1e3 * power_w(*at))))
            self.page = f"# TYPE {METRIC} counter\n{METRIC} {self._steps!r} {now_s * 1e3:.0f}\n"


def main() -> None:
    """Work, and answer whoever asks."""
    number = os.environ["NVIDIA_VISIBLE_DEVICES"].rpartition("-")[2]
    natural_w = float(os.environ.get(NATURAL_VARIABLE, NATURAL_W))
    job = Job(ctypes.CDLL(os.environ[LIBRARY_VARIABLE]), int(number), natural_w)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(job.page.encode())

    threading.Thread(target=job.work, daemon=True).start()
    http.server.ThreadingHTTPServer(("", PORT), Handler).serve_forever()


if __name__ == "__main__":
    main()
