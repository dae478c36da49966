"""Time over arrays: the domain's decisions played over thousands of nodes and millions of jobs."""
