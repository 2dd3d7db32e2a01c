"""Reading, linking and inspecting .pte files, without importing ExecuTorch or torch."""
