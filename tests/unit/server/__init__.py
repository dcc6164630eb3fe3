"""Request heads, proxies and upload quotas."""
