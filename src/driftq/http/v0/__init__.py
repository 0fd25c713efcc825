"""The handlers of `/v0`, one module per resource. They translate between HTTP and the features; they decide nothing."""
