"""What this build was made against. The build generates the module; a checkout has only this."""

TORCH_VERSION: str
