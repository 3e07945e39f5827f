"""Record batches: header, columns, compression, control records; encoded and decoded. Pure."""
