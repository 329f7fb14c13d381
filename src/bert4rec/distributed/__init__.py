"""Training by several processes at once, each on some of every batch and with some of the items."""
