"""The v0 dialect: one module per resource. Handlers translate between the wire and the parts; they decide nothing."""
