"""Commands for topics, records and routers."""
