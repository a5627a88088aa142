"""What knows the machine, and nothing of microbes."""
