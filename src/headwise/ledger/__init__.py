"""What the papers claim, and what the runs say about it."""
