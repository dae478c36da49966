"""`joulie accounting`: every joule, gram and cent of every pod, and budgets."""
