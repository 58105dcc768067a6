"""The command line: thin; no logic."""
