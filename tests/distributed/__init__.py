"""Real processes that train together, on the CPU with gloo."""
