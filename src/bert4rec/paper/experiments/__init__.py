"""A file for each table and figure of the paper: what to run for it, how to lay it out."""
