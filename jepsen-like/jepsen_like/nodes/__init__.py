"""Real broker processes on disks of their own: start, kill, pause, cut power, read disks."""
