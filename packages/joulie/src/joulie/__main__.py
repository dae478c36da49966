"""``python -m joulie``."""

from joulie.apps.cli.main import main

main()
