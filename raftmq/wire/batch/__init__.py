"""Record batches: headers, columns, compression, control records; bytes to records and back."""
