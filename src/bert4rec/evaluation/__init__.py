"""How good a model is: candidates, ranks, metrics, slices and significance (section 4.2 of the paper)."""
