"""`joulie grid backtest`: what deferral would have saved in a zone, from a file of its history."""
