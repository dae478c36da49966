"""The grid: carbon intensity and price of electricity over time, and when work is best done."""
