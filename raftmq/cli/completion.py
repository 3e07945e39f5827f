"""`raftmq completion`: the lines that let bash, zsh or fish complete commands and options.

click makes them. They call the program for each completion, which loads the noun in question only.
"""

from __future__ import annotations

from inspect import cleandoc

import rich_click as click
from click.shell_completion import get_completion_class

from raftmq.cli.terminal.program import COMPLETION_VARIABLE, NAME


@click.command(
    epilog=cleandoc("""
    Examples:

    echo 'eval "$(raftmq completion bash)"' >> ~/.bashrc

    echo 'eval "$(raftmq completion zsh)"' >> ~/.zshrc

    raftmq completion fish > ~/.config/fish/completions/raftmq.fish
    """)
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print what lets SHELL complete commands and options; names of topics are not completed.

    bash needs version 4.4 or newer.
    """
    made = get_completion_class(shell)
    assert made is not None, "click completes in each of them"
    root = context.find_root().command
    click.echo(made(root, {}, NAME, COMPLETION_VARIABLE).source())
    return 0
