"""From any interaction log to a prepared dataset (section 4.1 of the paper)."""
