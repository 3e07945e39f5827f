"""What all commands share: options, output, exit codes, and times as people type them."""
