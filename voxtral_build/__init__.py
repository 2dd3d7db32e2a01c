"""A factory that turns Voxtral-Mini-4B-Realtime checkpoints into ExecuTorch artifacts."""
