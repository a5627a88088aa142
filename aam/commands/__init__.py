"""One file for each command; the command line only parses and calls them."""
