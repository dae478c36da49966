"""Which of several clusters may admit a workload that starts: those of the best zone first, others in later rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def nominate(
    clusters: Mapping[str, str], zones: Sequence[str], nominated: Sequence[str], *, expand: bool
) -> tuple[str, ...]:
    """Names of the clusters to nominate.

    Clusters that are nominated already stay, since the workload has its place in their queues. Clusters whose zone is
    not among `zones` come last, all together; without any zones, all clusters are nominated at once.

    Args:
        clusters: zone of each cluster that is connected, by its name.
        zones: zones best first; empty where they cannot be compared.
        nominated: clusters that are nominated now; those that are not connected any more are dropped.
        expand: whether they had their time to admit the workload, so that the next zone follows.
    """
    kept = tuple(name for name in nominated if name in clusters)
    if kept and not expand:
        return kept
    left = sorted(clusters.keys() - set(kept))
    for zone in zones:
        if found := [name for name in left if clusters[name] == zone]:
            return (*kept, *found)
    return (*kept, *left)
