"""Commands that read segments, snapshots and journals from disk, without a broker."""
