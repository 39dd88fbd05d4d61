"""Work on tables and caches that no trainer waits for: what the commands do.

The process that does it is nobody's trainer, so it reads tables itself (``service.fetching``),
without a download process. Nothing here loads torch or streaming.
"""
