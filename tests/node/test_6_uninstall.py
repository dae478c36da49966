"""The release is deleted: its hook leaves the machine as it was."""

from support.real_site import ORIGINAL_W, Site


def test_uninstalling_restores_the_original_limits(enforced: Site) -> None:
    enforced.uninstall()
    assert enforced.machine.limits_w() == [ORIGINAL_W] * 2
    assert enforced.pods() == []
