"""Record batches: header, columns, compression, control records; encoded and decoded. Pure.

`records.py` is the way in; a broker decodes headers and directories only (decision 0009).
"""
