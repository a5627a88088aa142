"""The images of aam: what they are made of, and the programs that build, check and enter them."""
