"""The reproduction of the paper: its tables and figures, beside its numbers. The library never imports it."""
