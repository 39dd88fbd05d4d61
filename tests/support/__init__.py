"""What the tests stand on: a real S3 server, a fault proxy, watched scripts and known tables."""
