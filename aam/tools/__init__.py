"""Old names kept for users."""
