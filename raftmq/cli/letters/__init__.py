"""Dead letters of groups: looking at them, sending them back, deleting them."""
