"""The whole command line, loaded, for the page of its reference (docs/reference/commands.md)."""

from importlib import import_module

import click

from raftmq.cli.main import main

program = click.Group(
    "raftmq",
    help=main.help,
    params=main.params,
    commands={name: getattr(import_module(f"raftmq.cli.{name}"), name) for name in main.commands},
)
