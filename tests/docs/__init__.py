"""What the documents say is true."""
