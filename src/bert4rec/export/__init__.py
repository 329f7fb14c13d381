"""From a run to a model folder that is served without torch."""
