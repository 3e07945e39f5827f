"""The nemesis: schedules faults from a seed, chooses their targets, injects them, and heals."""
