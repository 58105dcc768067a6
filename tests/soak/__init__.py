"""A machine that goes on attacking: `make soak MINUTES=20`."""
