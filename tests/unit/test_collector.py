"""What long-running programs ask of Python's garbage collector."""

import gc

from joulie.program.collector import spare_what_lives_long


def test_what_is_alive_is_not_traversed_again():
    gc.unfreeze()
    alive = [[index] for index in range(1000)]
    try:
        spare_what_lives_long()
        tracked = {id(one) for one in gc.get_objects()}
        assert gc.get_freeze_count() > len(alive)
        assert not tracked & {id(one) for one in alive}
    finally:
        gc.unfreeze()
