"""Shard files in the local cache: written, published, opened, decoded, counted."""
