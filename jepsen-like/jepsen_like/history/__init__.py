"""The history of a run: events of clients and nemesis, the only input of the checkers."""
