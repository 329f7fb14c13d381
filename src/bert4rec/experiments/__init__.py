"""What is run and shown as a whole: the demo, and the paper's tables and figures."""
