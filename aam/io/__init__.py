"""Files in and out: tables, trees, sequences, metadata, matrices."""
