"""Job `rollup`: figures per topic, tenant and minute."""
