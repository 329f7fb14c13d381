"""Reading any interaction log: files, columns, times, ids (docs/logs.md says how)."""
