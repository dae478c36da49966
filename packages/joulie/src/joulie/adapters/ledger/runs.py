"""Runs of workloads in the ledger, from which runtimes are learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, delete, func, or_, select

from joulie.adapters.ledger import schema
from joulie.adapters.ledger.statements import upsert
from joulie.domain.runtimes import MAX_RUNS, Run, Workload

_RUNS_KEPT_S = 90 * 86400.0
_IN_ONE_QUESTION = 1000


def record_runs(connection: Connection, runs: Sequence[Run]) -> None:
    """Join runs, or parts of them, with what is known of them."""
    table = schema.runs
    joined: dict[str, Run] = {}
    for first in range(0, len(runs), _IN_ONE_QUESTION):
        asked = select(table).where(table.c.uid.in_({run.uid for run in runs[first : first + _IN_ONE_QUESTION]}))
        for row in connection.execute(asked):
            workload = Workload(row.namespace, row.kind, row.name)
            joined[row.uid] = Run(row.uid, workload, row.started_s, row.ended_s, row.ran_s, row.finished)
    for run in runs:
        joined[run.uid] = joined[run.uid].joined(run) if run.uid in joined else run
    if not joined:
        return
    rows = [
        {
            "uid": run.uid,
            **run.workload._asdict(),
            "started_s": run.started_s,
            "ended_s": run.ended_s,
            "ran_s": run.ran_s,
            "finished": run.finished,
        }
        for run in joined.values()
    ]
    connection.execute(upsert(connection, table, replaced=("started_s", "ended_s", "ran_s", "finished")), rows)


def run_durations(connection: Connection) -> Mapping[Workload, Sequence[float]]:
    """Durations of the latest finished runs by workload, s."""
    table = schema.runs.c
    asked = select(table.namespace, table.kind, table.name, table.ran_s).where(table.finished)
    durations: dict[Workload, list[float]] = {}
    for namespace, kind, name, ran_s in connection.execute(asked.order_by(table.ended_s.desc())):
        of_workload = durations.setdefault(Workload(namespace, kind, name), [])
        if len(of_workload) < MAX_RUNS:
            of_workload.append(ran_s)
    return durations


def prune_runs(connection: Connection, now_s: float) -> None:
    """Drop runs that are old, and all but the latest of each workload."""
    table = schema.runs
    keys = (table.c.namespace, table.c.kind, table.c.name)
    rank = func.row_number().over(partition_by=keys, order_by=table.c.ended_s.desc())
    ranked = select(table.c.uid, rank.label("rank")).subquery()
    surplus = select(ranked.c.uid).where(ranked.c.rank > MAX_RUNS)
    connection.execute(delete(table).where(or_(table.c.ended_s < now_s - _RUNS_KEPT_S, table.c.uid.in_(surplus))))
