"""What breaks a cluster: when, whom, how, and how all of it is undone."""
