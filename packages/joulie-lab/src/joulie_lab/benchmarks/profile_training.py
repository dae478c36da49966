"""Training of the classifier's trees. Needs scikit-learn, the extra ``learn``; what it makes needs nothing.

A leaf is kept only where, on workloads that it was not grown on, it costs clearly less than the rules do there;
everywhere else the rules stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn.tree import DecisionTreeClassifier

from joulie.domain.profiles.learned import FEATURES, features
from joulie.domain.profiles.profile import Classification, Hints
from joulie.domain.profiles.rules import classify
from joulie.domain.profiles.tree import Leaf, Split, Target, Tree
from joulie.domain.units import FloatArray, IntArray
from joulie.domain.workload import Level
from joulie_lab.benchmarks.profile_levels import LEVELS, cost, is_idle, said_of
from joulie_lab.benchmarks.profile_traces import Observed

MEAN_FEATURES = frozenset({"cpu_mean", "gpu_mean", "memory", "gpu_memory"})
"""What the rules go by: trees of these alone show what better thresholds would do without the course."""

KEPT = (Target.CPU_INTENSITY, Target.GPU_INTENSITY, Target.GPU_SENSITIVITY)
"""Trees of the classifier. On shifted workloads those of the CPUs' cap sensitivity gained little or nothing.

This choice, and that of the depth, were made on seeds that are not reported (3001 to 3006).
"""

_DEPTH = 3
_LEAF_SHARE = 0.02
"""Share of the workloads that a leaf has, at least."""
_SURE = 2.0
"""Standard errors by which a leaf must be cheaper than the rules."""
_CPU = frozenset(name for name in FEATURES if name.startswith("cpu_")) | {"memory"}
_ALL = frozenset(FEATURES)
_FEATURES_OF: Mapping[Target, frozenset[str]] = {
    Target.CPU_INTENSITY: _CPU - {"memory"},
    Target.CPU_SENSITIVITY: _CPU,
    Target.FED_CPU_SENSITIVITY: _ALL - {"gpu_memory"},
    Target.GPU_INTENSITY: _ALL - {"memory", "gpu_memory"},
    Target.GPU_SENSITIVITY: _ALL - {"memory"},
}


@dataclass(frozen=True, eq=False)
class _Rows:
    """Workloads as scikit-learn wants them: those of which all features are known.

    Attributes:
        names: of the features.
        values: of the features, shape ``(n_workloads, n_features)``.
        truth: places in `LEVELS`.
        by_rules: what the rules say, likewise.
    """

    names: tuple[str, ...]
    values: FloatArray
    truth: IntArray
    by_rules: IntArray


def train(
    workloads: Sequence[Observed], checks: Sequence[Observed], *, of: frozenset[str] = _ALL
) -> dict[Target, Tree]:
    """Trees from workloads whose truth is known.

    Args:
        workloads: to grow the trees on.
        checks: others, to keep those leaves that are better than the rules.
        of: features that may be used.
    """
    grown, checked = (
        [(one, features(one.use, one.course), classify(Hints(), one.use)) for one in ones]
        for ones in (workloads, checks)
    )
    trees = {}
    for target in Target:
        names = tuple(sorted(_FEATURES_OF[target] & of))
        trees[target] = _tree(_rows(target, names, grown), _rows(target, names, checked))
    return trees


_Known = tuple[Observed, Mapping[str, float], Classification]
"""A workload with its features and what the rules say."""


def _rows(target: Target, names: tuple[str, ...], workloads: Sequence[_Known]) -> _Rows:
    values, truth, by_rules = [], [], []
    for one, known, classification in workloads:
        if target not in one.truth or is_idle(target, one) or any(name not in known for name in names):
            continue
        values.append([known[name] for name in names])
        truth.append(LEVELS.index(one.truth[target]))
        by_rules.append(LEVELS.index(said_of(target, classification)))
    return _Rows(names, np.array(values), np.array(truth), np.array(by_rules))


class _Node(NamedTuple):
    """A tree in nested form: a level, None for the rules, or a question with two nodes."""

    level: Level | None
    feature: str = ""
    above: int = 0
    then: Any = None
    otherwise: Any = None


def _tree(grown: _Rows, checked: _Rows) -> Tree:
    model = DecisionTreeClassifier(criterion="entropy", max_depth=_DEPTH, min_samples_leaf=_LEAF_SHARE, random_state=0)
    model.fit(grown.values, grown.truth)
    return _table(_node(model.tree_, 0, grown, checked))


def _node(fitted: Any, index: int, grown: _Rows, checked: _Rows) -> _Node:
    """The node `index` of a fitted tree, for the workloads that reach it."""
    left, right = fitted.children_left[index], fitted.children_right[index]
    if left == right:
        return _Node(_level(grown, checked))
    column, above = int(fitted.feature[index]), round(float(fitted.threshold[index]))
    high, low = (
        _node(fitted, child, _where(grown, column, above, is_above), _where(checked, column, above, is_above))
        for child, is_above in ((right, True), (left, False))
    )
    if high == low and not high.feature:
        return high
    return _Node(None, grown.names[column], above, high, low)


def _where(rows: _Rows, column: int, above: int, is_above: bool) -> _Rows:
    chosen = (rows.values[:, column] > above) == is_above
    return _Rows(rows.names, rows.values[chosen], rows.truth[chosen], rows.by_rules[chosen])


def _level(grown: _Rows, checked: _Rows) -> Level | None:
    """The cheapest level of a leaf, None where it is not clearly cheaper than the rules."""
    if len(grown.truth) == 0 or len(checked.truth) < 2:
        return None
    costs = [float(cost(grown.truth, np.full_like(grown.truth, place)).sum()) for place in range(len(LEVELS))]
    best = int(np.argmin(costs))
    saved = cost(checked.truth, checked.by_rules) - cost(checked.truth, np.full_like(checked.truth, best))
    error = float(saved.std(ddof=1)) / len(saved) ** 0.5
    return LEVELS[best] if float(saved.mean()) > _SURE * error else None


def _table(root: _Node) -> Tree:
    """The nodes as rows, each before those that it leads to."""
    rows: list[Split | Leaf] = []

    def add(node: _Node) -> int:
        place = len(rows)
        rows.append(Leaf(node.level))
        if node.feature:
            then, otherwise = add(node.then), add(node.otherwise)
            rows[place] = Split(node.feature, node.above, then, otherwise)
        return place

    add(root)
    return tuple(rows)


_HEAD = '''"""The learned trees. Written by ``joulie bench profiles --train``: do not edit."""

from __future__ import annotations

from collections.abc import Mapping

from joulie.domain.profiles.tree import Leaf, Split, Target, Tree
from joulie.domain.workload import Level

TREES: Mapping[Target, Tree] = {
'''


def module_of(trees: Mapping[Target, Tree]) -> str:
    """The text of `joulie.domain.profiles.trees`."""
    lines = [_HEAD]
    for target in KEPT:
        lines.append(f"    Target.{target.name}: (\n")
        lines += [f"        {_row(row)},\n" for row in trees[target]]
        lines.append("    ),\n")
    return "".join([*lines, "}\n"])


def _row(row: Split | Leaf) -> str:
    if isinstance(row, Split):
        return f'Split("{row.feature}", {row.above}, {row.then}, {row.otherwise})'
    return "Leaf(None)" if row.level is None else f"Leaf(Level.{row.level.name})"
