"""Commands of a model in production: its store, its successors, its tests."""
