"""The shared cache: shard files in Redis, memcached or any fsspec filesystem, for many nodes.

From the bottom up::

    shard_cache        the contract; third parties implement it
    redis_cache, memcached_cache, fsspec_cache     bytes in, bytes out; may raise
    framed             content that says what it is; in parts where a value has a limit
    guarded            never raises, never waits past a deadline, leaves a dead tier alone
    layered            several tiers, fast before slow
    opening            a url becomes all of this
    shared_tier        what the download process uses: take a shard file, offer one
"""
