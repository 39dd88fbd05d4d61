"""The command ``lance-stream``: one module of ``cli.commands`` for each subcommand."""
