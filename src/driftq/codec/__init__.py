"""Request bodies and pages: JSON and Arrow, to and from columns."""
