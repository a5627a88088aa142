"""Old names of commands."""
