"""What nodes leave behind, made into events of a history: their logs on disk, and what they say."""
