"""Trials that measure what Joulie saves: randomised switchbacks over matched halves of the nodes."""
