"""One reader per family of other people's models."""
