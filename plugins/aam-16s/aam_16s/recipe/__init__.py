"""How the encoders of this package are made, and what their cards were measured with."""
