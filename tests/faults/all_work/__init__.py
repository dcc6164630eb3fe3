"""Every kind of work under every fault: begun together, broken together, judged one by one."""
