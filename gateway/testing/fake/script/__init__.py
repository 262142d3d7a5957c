"""Scripts: their values, their reader, and the tokens that they make an answer of."""
