"""The data sets that are known by name: where to download them, how to read them."""
