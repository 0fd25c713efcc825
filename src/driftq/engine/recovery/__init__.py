"""From files back to memory."""
