"""The Alibaba GPU 2023 trace (openb): pods that share GPUs, placed on its nodes by the published policies and ours."""
