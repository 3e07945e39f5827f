"""Real processes on disks of their own, and everything that may be done to them."""
