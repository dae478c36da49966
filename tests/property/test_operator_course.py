"""The whole operator under faults: its loops over the fake cluster, every fault once in each course, in any order.

By hand, more of them: ``JOULIE_OPERATOR_COURSES=0-499 pytest tests/property/test_operator_course.py -n 2``; one that is
broken is played again by its seed.
"""

import asyncio
import os

import pytest

from support.operator_course import played

FIRST, _, LAST = os.environ.get("JOULIE_OPERATOR_COURSES", "0").partition("-")


@pytest.mark.parametrize("seed", range(int(FIRST), int(LAST or FIRST) + 1))
def test_the_operator_keeps_its_promises_whatever_happens(seed, tmp_path):
    """Budgets are over for a response time at most, and go on to fit; nobody writes without the lease.

    No node is switched off under a pod, and those that are empty sleep; statuses are true, critical nodes give last,
    nobody gives for nothing, and limits return.
    """
    asyncio.run(played(tmp_path, seed))
