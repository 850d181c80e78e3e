"""The NIXL replay: moves a KV cache as vLLM's connector does, without an engine.

The package is laid down on the host by a plan and run there with the host's Python; it
needs NIXL (which brings numpy) and nothing else.
"""
