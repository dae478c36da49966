"""What every GitHub workflow keeps to: least privilege, pinned actions, no secret but GitHub's own token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.stem)
def workflow(request: pytest.FixtureRequest) -> dict[str, Any]:
    found = yaml.safe_load(request.param.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job["steps"]


def test_there_are_both() -> None:
    assert [path.stem for path in WORKFLOWS] == ["ci", "release"]


def test_a_job_may_write_only_what_it_names(workflow: dict[str, Any]) -> None:
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert isinstance(job.get("permissions", {}), dict), name
        assert job["timeout-minutes"] <= 120, name


def test_actions_are_pinned(workflow: dict[str, Any]) -> None:
    for step in steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"[\w.-]+/[\w./-]+@(v\d+|release/v\d+|[0-9a-f]{40})", step["uses"])
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_secrets_stay_out_of_commands(workflow: dict[str, Any]) -> None:
    assert "pull_request_target" not in workflow[True]  # `on`, as YAML 1.1 reads it
    for step in steps(workflow):
        # What others choose, such as a branch's name, gets into a script as a variable only.
        assert "${{" not in step.get("run", ""), step
        assert set(re.findall(r"secrets\.(\w+)", str(step))) <= {"GITHUB_TOKEN"}
