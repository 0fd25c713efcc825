"""Named cursors: where readers that want to be seen stand."""
