"""What subclasses mosaicml-streaming: the stream, its readers, and agreement between ranks.

The only room that imports torch or streaming.
"""
