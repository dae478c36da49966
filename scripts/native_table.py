"""Writes the table of docs/concepts/native-runtime.md from the committed result of the benchmark.

joulie bench native --json benchmarks/results/native.json
python scripts/native_table.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joulie_lab.benchmarks import native

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "native.json"
PAGE = ROOT / "docs" / "concepts" / "native-runtime.md"
BEGIN, END = "<!-- from benchmarks/results/native.json -->\n", "<!-- end -->\n"


def with_table(page: str, result: Mapping[str, Any]) -> str:
    """The page with the table of a result between its marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    lines = [native.COLUMNS, ("---",) * len(native.COLUMNS), *native.rows(result)]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main() -> None:
    """Write the page."""
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), result), encoding="utf-8")


if __name__ == "__main__":
    main()
