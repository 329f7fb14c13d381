"""From a log to a model that can be served, and a page about it, in one call and a given time."""
