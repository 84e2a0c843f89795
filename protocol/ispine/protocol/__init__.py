"""The wire protocol: topics, messages, codec, identifiers, errors and links.

The bottom layer. Nothing outside this package knows a topic string or a byte of the encoding.
"""
