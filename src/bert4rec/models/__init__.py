"""BERT4Rec and its baselines: a file each. Knows nothing of training."""
