"""What was asked for and what came of it: the words in which clients, nemesis and checkers talk."""
