"""One run: its spec, its loop, its optimiser, its checkpoint, the machine it runs on."""
