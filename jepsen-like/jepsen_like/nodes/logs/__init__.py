"""What nodes leave behind, as events of a history: their disks' logs, and their output."""
