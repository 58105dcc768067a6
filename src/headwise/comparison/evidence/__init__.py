"""Results that others published on the shape of attention, beside our own: the table, its weighing, its own test."""
