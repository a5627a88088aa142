"""What each ASV adds to the predictions of a saved model."""
