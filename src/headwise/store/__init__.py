"""Results in SQLite, and rows of them as claims and charts read them."""
