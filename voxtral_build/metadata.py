"""The constant methods that ExecuTorch's C++ runner asks a model for.

Source: examples/models/voxtral_realtime/voxtral_realtime_runner.cpp of ExecuTorch.
"""

from __future__ import annotations

from voxtral_build.model.config import CONV_STRIDES, ModelConfig, RuntimeConfig


def constant_methods(config: ModelConfig, runtime: RuntimeConfig) -> dict[str, int]:
    """Name -> value; lengths in samples, mel frames, encoder frames or tokens as noted."""
    audio = config.audio
    constants = {
        "sample_rate": audio.sampling_rate,
        "num_mel_bins": audio.num_mel_bins,
        "hop_length": audio.hop_length,  # samples
        "window_size": audio.window_size,  # samples
        "downsample_factor": config.downsample_factor,
        "dim": config.dim,
        "enc_dim": config.encoder.dim,
        "vocab_size": config.vocab_size,
        "max_seq_len": runtime.max_seq_len,  # tokens
        "sliding_window": runtime.sliding_window,  # tokens
        "delay_tokens": runtime.delay_tokens,
    }
    if runtime.mode == "streaming":
        window = config.streaming_window
        constants |= {
            "streaming": 1,
            "step_samples": window.step,
            "chunk_mel_len": config.mel_frames_per_token,  # mel frames
            "max_enc_len": runtime.max_enc_len,  # encoder frames
            "conv1_pad": runtime.conv_left_padding(CONV_STRIDES[0]),  # mel frames
            "conv2_pad": runtime.conv_left_padding(CONV_STRIDES[1]),  # conv1 frames
            "stft_left_overlap": window.left,  # samples
            "stft_right_lookahead": window.right,  # samples
            "mel_skip_frames": window.skip_frames,
        }
    return constants
