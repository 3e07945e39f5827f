"""The command line `raftmq`: one module per noun (topic, group, produce, ...), loaded on first use.

Owns what people type and what they see. Decides nothing about messages or files: every command
calls the package that does the work. stdout carries the answer, stderr everything else.
"""

from raftmq.cli.main import main

__all__ = ["main"]
