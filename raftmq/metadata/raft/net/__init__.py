"""Connections of the quorum: between voters, with observers, and with who asks for its status."""
