"""Files and folders that are written whole, and never over what is not ours."""
