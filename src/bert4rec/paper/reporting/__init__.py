"""Results beside the numbers of the paper: verdicts, tables, figures, a page."""
