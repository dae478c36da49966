"""Tests of this folder need a real NVIDIA GPU: `make gpu` runs them; any other run leaves them out."""

import os

collect_ignore_glob = [] if "JOULIE_TEST_GPU" in os.environ else ["test_*.py"]
