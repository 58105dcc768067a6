"""What GPUs are made for, as far as it bears on a shape."""
