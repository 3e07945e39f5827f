"""Records on their way through a terminal or a pipe: what `produce` and `consume` are made of."""
