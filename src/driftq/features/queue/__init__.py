"""Who holds what, until when: shared by whatever hands out records one by one."""
