"""What several studies share: runs with the sizes of their presets, a file per kind, and statistics of their rows."""
