"""What happened in a run of the scenario on a real node, kept as evidence for the documentation."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

Json = dict[str, Any]


def now_s() -> float:
    """s since some time."""
    return time.monotonic()  # noqa: TID251 - a real node lives in real time


class ScenarioLog:
    """A pytest plug-in that keeps every test's outcome and duration, with what was noted while it ran.

    Attributes:
        figures: whatever tests measure, by name; JSON.
    """

    def __init__(self, file: Path) -> None:
        """Keep it in `file`, which is written at the end of the session."""
        self.figures: Json = {}
        self._file = file
        self._started_s = now_s()
        self._steps: list[Json] = []
        self._notes: list[Json] = []

    def note(self, text: str) -> None:
        """Say what has just happened."""
        self._notes.append({"at_s": round(now_s() - self._started_s, 1), "text": text})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the parts of a test as one step: what it sets up first is a part of it."""
        file, _, test = report.nodeid.partition("::")
        if report.when == "setup":
            self._steps.append({"file": Path(file).stem, "test": test, "outcome": "passed", "took_s": 0.0})
        step = self._steps[-1]
        step["took_s"] = round(step["took_s"] + report.duration, 1)
        if not report.passed:
            step["outcome"] = report.outcome
        if report.when == "call" or not report.passed:
            step["notes"] = [*step.get("notes", []), *self._notes]
            self._notes.clear()

    def pytest_sessionfinish(self) -> None:
        """Write the file; of a run of some tests only, what others have left stays."""
        before = json.loads(self._file.read_text()) if self._file.exists() else {"steps": []}
        repeated = {(step["file"], step["test"]) for step in self._steps}
        steps = [step for step in before["steps"] if (step["file"], step["test"]) not in repeated] + self._steps
        steps.sort(key=lambda step: step["file"])
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps({**before, **self.figures, "steps": steps}, indent=1) + "\n")
