"""The subcommands: each module holds one, as ``command``, under the module's own name.

A module that is put here is a command; nothing else lists them. Modules load only click at import
(``lance-stream --help`` imports them all), and what does the work when it is to be done.
"""
