"""What shapes are tried on: one file a task."""
