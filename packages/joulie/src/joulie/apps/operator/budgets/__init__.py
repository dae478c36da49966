"""PowerBudgets: limits of nodes that keep them, and their status."""
