"""The delete flags of a block: one byte per row, outside the checksum. A row is deleted if its byte is `DELETED`.

The tables are for `bytes.translate`.
"""

DELETED = 0xD5
"""Any other byte means that the row is live. A flipped bit of 0 does not give this value."""
DELETED_BYTE = bytes([DELETED])
FLAGS_TO_LIVE = bytes(0 if value == DELETED else 1 for value in range(256))
"""1 for a live row, 0 for a deleted one."""
FLAGS_TO_DELETED = bytes(1 if value == DELETED else 0 for value in range(256))
"""1 for a deleted row, 0 for a live one."""
VALID_FLAGS = bytes(DELETED if value == DELETED else 0 for value in range(256))
"""`DELETED` for a deleted row, 0 for a live one."""
