"""The data sets that are known by name: where they are fetched, how they are read."""
