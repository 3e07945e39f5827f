"""The command line: one module per noun, loaded when that noun is used.

Owns what people type and what they see. Decides nothing about messages or files: every command
is a thin face over the package that does the work. stdout carries the answer, stderr the rest.
"""

from raftmq.cli.main import main

__all__ = ["main"]
