"""The grammar of our figures."""
