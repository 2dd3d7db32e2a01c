"""The model's dimensions, read from `params.json`, and what a build sets on top of them.

Source of the fields: `params.json` of mistralai/Voxtral-Mini-4B-Realtime-2602.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from voxtral_build.axes import Mode, UnitMode
from voxtral_build.checkpoint import REPOSITORY, read_params
from voxtral_build.errors import CheckpointError
from voxtral_build.settings import Fidelity, Settings

Count = Annotated[int, Field(gt=0, strict=True)]
HeadDim = Annotated[int, Field(gt=0, multiple_of=2, strict=True)]  # RoPE turns pairs
Positive = Annotated[float, Field(gt=0)]

CONV_KERNEL = 3  # both convolutions of the encoder; their strides are 1 and 2
CONV_STRIDES = (1, 2)


class _Params(BaseModel):
    # Unknown fields are let through: params.json also speaks to other programs.
    model_config = ConfigDict(extra="ignore", frozen=True)


class AudioParams(_Params):
    """How sound becomes log-mel frames."""

    sampling_rate: Count = 16_000
    frame_rate: Positive = 12.5
    num_mel_bins: Count = 128
    hop_length: Count = 160
    window_size: Count = 400
    global_log_mel_max: float = 1.5


class EncoderParams(_Params):
    """The causal audio encoder."""

    dim: Count
    n_layers: Count
    n_heads: Count
    n_kv_heads: Count | None = None
    head_dim: HeadDim
    hidden_dim: Count
    rope_theta: Positive
    norm_eps: Positive
    sliding_window: Count
    use_biases: Literal[True] = True
    causal: Literal[True] = True
    audio_encoding_args: AudioParams = AudioParams()

    @model_validator(mode="after")
    def _attention_is_consistent(self) -> Self:
        if self.n_kv_heads not in (None, self.n_heads):
            raise ValueError(
                f"n_kv_heads {self.n_kv_heads} must equal n_heads {self.n_heads}: "
                "the encoder has no grouped-query attention"
            )
        return self


class DownsampleParams(_Params):
    """How many encoder frames make one audio token."""

    downsample_factor: Count


class WhisperParams(_Params):
    """The audio side: encoder and downsampling."""

    encoder_args: EncoderParams
    downsample_args: DownsampleParams


class MultimodalParams(_Params):
    """The multimodal side of params.json."""

    whisper_model_args: WhisperParams


@dataclass(frozen=True)
class StreamingWindow:
    """What a streaming preprocessor takes for one token's mel frames.

    Frames are centred on multiples of the hop: the first sees samples from before the
    token, and the last some from after it.

    Attributes:
        left, step, right: samples before the token, of it, and after it (320 + 1280 + 40 in
            the real model).
        skip_frames: mel frames of the samples before the token.
    """

    left: int
    step: int
    right: int
    skip_frames: int

    @property
    def samples(self) -> int:
        return self.left + self.step + self.right


class ModelConfig(_Params):
    """`params.json`: the text decoder's dimensions, and the audio side under `multimodal`."""

    dim: Count
    n_layers: Count
    n_heads: Count
    n_kv_heads: Count
    head_dim: HeadDim
    hidden_dim: Count
    vocab_size: Count
    rope_theta: Positive
    norm_eps: Positive
    sliding_window: Count = 8192
    ada_rms_norm_t_cond: Literal[True] = True
    ada_rms_norm_t_cond_dim: Count
    tied_embeddings: Literal[True] = True
    multimodal: MultimodalParams

    @model_validator(mode="after")
    def _shapes_are_consistent(self) -> Self:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads {self.n_heads} must be a multiple of n_kv_heads {self.n_kv_heads}"
            )
        audio = self.audio
        samples = audio.hop_length * self.mel_frames_per_token
        if samples * audio.frame_rate != audio.sampling_rate:
            raise ValueError(
                f"one token is {samples} samples (hop_length {audio.hop_length} x 2 x "
                f"downsample_factor {self.downsample_factor}), which at frame_rate "
                f"{audio.frame_rate} is not sampling_rate {audio.sampling_rate}"
            )
        return self

    @property
    def encoder(self) -> EncoderParams:
        return self.multimodal.whisper_model_args.encoder_args

    @property
    def audio(self) -> AudioParams:
        return self.encoder.audio_encoding_args

    @property
    def downsample_factor(self) -> int:
        return self.multimodal.whisper_model_args.downsample_args.downsample_factor

    @property
    def mel_frames_per_token(self) -> int:
        """Mel frames in one audio token: the second convolution halves them first."""
        return CONV_STRIDES[1] * self.downsample_factor

    @property
    def samples_per_token(self) -> int:
        """Audio samples in one token (1280 = 80 ms in the real model)."""
        return self.audio.hop_length * self.mel_frames_per_token

    @property
    def streaming_window(self) -> StreamingWindow:
        half, hop = self.audio.window_size // 2, self.audio.hop_length
        skip = -(-half // hop)  # whole hops that cover half a window
        return StreamingWindow(
            left=skip * hop,
            step=self.samples_per_token,
            right=half - hop,  # the last frame is centred one hop before the token's end
            skip_frames=skip,
        )

    @classmethod
    def load(cls, path: Path) -> ModelConfig:
        """Read `params.json`.

        Raises:
            CheckpointError: the file is missing, is not JSON or another model's, or a field
                is missing or absurd.
        """
        return cls.parse(read_params(path), str(path))

    @classmethod
    def parse(cls, params: Any, origin: str = "params.json") -> ModelConfig:
        """Check the content of `params.json`; `origin` names it in messages."""
        try:
            return cls.model_validate(params)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "(whole file)"
            missing = first["type"] == "missing"
            raise CheckpointError(
                f"{origin}: field {field} is {'missing' if missing else 'wrong'}",
                got="nothing" if missing else _short(first["input"]),
                allowed=first["msg"].removeprefix("Value error, "),
                next_step=f"compare it with params.json of {REPOSITORY}",
            ) from None


def _short(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."


@dataclass(frozen=True)
class RuntimeConfig:
    """What a build decides about the model, settled against its `params.json`.

    Attributes:
        mode: `offline` or `streaming`.
        max_seq_len: positions of the flat decoder cache and bound of one call, in tokens.
        sliding_window: the decoder's attention window, in tokens.
        max_enc_len: the encoder's attention window, in encoder frames (20 ms each).
        delay_tokens: transcription delay, in tokens (80 ms each).
        fidelity: `reference`, or `executorch` for the upstream example's deviations: conv2
            padded by kernel - 1, and no windows offline, in encoder or decoder.
    """

    mode: Mode
    max_seq_len: int
    sliding_window: int
    max_enc_len: int
    delay_tokens: int
    fidelity: Fidelity

    @classmethod
    def resolve(cls, config: ModelConfig, settings: Settings, mode: UnitMode) -> RuntimeConfig:
        """Fill what `settings` leaves open from `params.json`.

        What both modes share is the same in either: it is built as offline.
        """
        return cls(
            mode="offline" if mode == "shared" else mode,
            max_seq_len=settings.max_seq_len,
            sliding_window=settings.sliding_window or config.sliding_window,
            max_enc_len=settings.max_enc_len or config.encoder.sliding_window,
            delay_tokens=settings.delay_tokens,
            fidelity=settings.fidelity,
        )

    @property
    def decode_bound(self) -> int:
        """Most positions that one `text_decoder` call may take.

        A ring of twice the window keeps every key a query still needs only while a call
        writes at most one window.
        """
        if self.mode == "streaming":
            return min(self.max_seq_len, self.sliding_window)
        return self.max_seq_len

    def conv_left_padding(self, stride: int) -> int:
        """Frames of left context of an encoder convolution.

        The reference (vLLM, transformers) pads by kernel - stride, so that frame i of the
        second convolution sees inputs 2i - 1 to 2i + 1; ExecuTorch's example pads by
        kernel - 1.
        """
        return CONV_KERNEL - (stride if self.fidelity == "reference" else 1)

    @property
    def offline_encoder_window(self) -> int | None:
        """Window of the offline encoder in frames; None is full causal attention."""
        return self.max_enc_len if self.fidelity == "reference" else None

    @property
    def offline_decoder_window(self) -> int | None:
        """Window of the flat decoder cache; None where it cannot be exceeded."""
        bounded = self.fidelity == "reference" and self.max_seq_len > self.sliding_window
        return self.sliding_window if bounded else None
