"""One run from beginning to end: settings, the loop, the folder of the run, its numbers."""
