"""Helpers that lie beside the tests (`sysfs_trees`) are importable from all of them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
