"""Private: atomic writes, checksums, and safetensors files read with limits."""
