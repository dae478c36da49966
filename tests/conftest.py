"""What holds for all tests."""

from hypothesis import settings

# Machines are shared and slow at times: how long an example takes says nothing about the code.
settings.register_profile("joulie", deadline=None)
settings.load_profile("joulie")
