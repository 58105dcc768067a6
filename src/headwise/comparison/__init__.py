"""The best shape for a task and a budget."""
