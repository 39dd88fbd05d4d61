"""The download process of a node: how it is started, found, asked, and told when to end."""
