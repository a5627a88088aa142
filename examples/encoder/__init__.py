"""How the shipped encoder is made."""
