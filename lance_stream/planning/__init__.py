"""What to read, decided without reading it: row ranges, shard plans, the index, fingerprints.

Pure logic: nothing here opens a table, a socket or a process (``ShardIndex.save`` and ``load``
are the one exception, and only they touch files).
"""
