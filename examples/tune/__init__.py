"""A search for options of `aam train`."""
