"""Label selectors as kubectl reads them."""

import pytest

from joulie.domain.scheduling.labels import LabelSelector, LabelSelectorError

LABELS = {"joulie.io/managed": "true", "tier": "gpu", "empty": "", "cores": "64"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("joulie.io/managed=true", True),
        ("joulie.io/managed==true, tier = gpu", True),
        ("joulie.io/managed=false", False),
        ("tier!=gpu", False),
        ("absent!=gpu", True),
        ("tier in (cpu, gpu),!absent", True),
        ("tier notin (cpu,gpu)", False),
        ("absent notin (x)", True),
        ("absent in (x)", False),
        ("tier", True),
        ("! tier", False),
        ("empty=", True),
        ("absent=", False),
        ("cores>63, cores < 65", True),
        ("cores>64", False),
        ("tier>3", False),
        ("node-role.kubernetes.io/worker", False),
    ],
)
def test_matches(text, expected):
    assert LabelSelector.parse(text).matches(LABELS) is expected


@pytest.mark.parametrize("text", ["tier=gpu,", "tier in gpu", "=x", "tier>gpu", "a b", "tier in (a", "a=b=c"])
def test_what_is_no_selector_is_refused_with_the_part_that_is_wrong(text):
    with pytest.raises(LabelSelectorError, match="invalid label requirement"):
        LabelSelector.parse(text)
