"""The built-in world: a shop and its log, whose best possible recommendations are known."""
