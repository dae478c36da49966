"""``joulie trial``: plans trials and reports what they measured."""
