"""The Hugging Face Hub: files fetched whole and checked, repositories read and written.

What is called is huggingface_hub. What is added: downloads that go on where another process
was killed, hashes held against what was expected, and failures told as a `HubError`.
"""
