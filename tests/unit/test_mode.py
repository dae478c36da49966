"""The mode of a node or namespace, from its label and the program's setting."""

import pytest

from joulie.domain.mode import Mode, mode_of


@pytest.mark.parametrize("default", list(Mode))
def test_a_label_takes_precedence_over_the_setting(default: Mode) -> None:
    assert mode_of("observe", default) is Mode.OBSERVE
    assert mode_of("enforce", default) is Mode.ENFORCE
    assert mode_of(None, default) is default


@pytest.mark.parametrize("label", ["", "Enforce", "enforced", "off"])
def test_an_unknown_label_observes(label: str) -> None:
    assert mode_of(label, Mode.ENFORCE) is Mode.OBSERVE
