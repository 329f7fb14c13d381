"""What a training tells: how it goes, how long it takes, what to make of it, and what is written down."""
