"""How the runs of experiments are worked off, and where their results go."""
