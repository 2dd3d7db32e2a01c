"""An artifact's folder, checked and ready to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from voxtral_build.artifact_files import DATA, MANIFEST, MODEL, PREPROCESSOR
from voxtral_build.axes import METHODS_OF, Mode
from voxtral_build.checkpoint import TOKENIZER, read_json
from voxtral_build.errors import BuildError, PteError
from voxtral_build.files import sha256
from voxtral_build.manifest import FileRecord, Manifest
from voxtral_build.pte.inspect import describe
from voxtral_build.runtime.greedy import Function, Methods
from voxtral_build.runtime.program import Program, has_delegate
from voxtral_build.text import Vocabulary
from voxtral_build.tokenizer import StreamingTokens

_CONSTANTS = (
    *("sample_rate", "hop_length", "downsample_factor", "delay_tokens", "max_seq_len"),
    "vocab_size",
)
_STREAMING_CONSTANTS = (
    *("step_samples", "chunk_mel_len", "stft_left_overlap", "stft_right_lookahead"),
    "mel_skip_frames",
)
_REBUILD = "link the artifact again: `snakemake --forcerun link`"


@dataclass
class Artifact:
    """The methods and constants of one variant.

    Its caches serve one utterance at a time, see `claim`.

    Attributes:
        name: for messages.
        mode: `offline` or `streaming`.
        sample_rate: in Hz.
        step: samples a token.
        delay_tokens: the transcription delay that `text_decoder` has inside.
        max_seq_len: positions of an offline utterance.
        constants: of the streaming encoder's windows; see `metadata.constant_methods`.
        preprocess: (N,) float32 samples -> (1, num_mel_bins, frames) float32 log-mel.
        methods: encoder, embedding and decoder.
    """

    name: str
    mode: Mode
    sample_rate: int
    step: int
    delay_tokens: int
    max_seq_len: int
    constants: Mapping[str, int]
    preprocess: Function
    methods: Methods
    tokens: StreamingTokens
    vocabulary: Vocabulary
    _user: object = field(default=None, repr=False)

    @classmethod
    def load(cls, folder: Path) -> Artifact:
        """Load an artifact's folder.

        The preprocessor and the tokenizer are held against the manifest by hash; the
        model, which may have gigabytes, by its size. A model with a data file is held
        against it by hash, and so is that file: a program finds data by name alone, and those
        of another checkpoint have the same names and sizes. It would run, and hear nonsense.

        Raises:
            BuildError: not such a folder, or a file that is not the one it was made with.
        """
        data = _check_files(folder)
        tekken = read_json(folder / TOKENIZER)
        tokens = StreamingTokens.parse(tekken, folder / TOKENIZER)
        vocabulary = Vocabulary(tekken, folder / TOKENIZER)
        program = _program(folder / MODEL, data)
        _check_delegates(folder / MODEL)
        mode: Mode = "streaming" if "streaming" in program.method_names else "offline"
        names = _CONSTANTS + (_STREAMING_CONSTANTS if mode == "streaming" else ())
        constants = {name: program.constant(name) for name in names}
        if constants["vocab_size"] != vocabulary.specials + vocabulary.pieces:
            raise BuildError(
                f"{folder}: model and tokenizer are of different vocabularies",
                got=f"{vocabulary.specials + vocabulary.pieces} tokens in {TOKENIZER}",
                allowed=f"{constants['vocab_size']}, as in {MODEL}",
                next_step=_REBUILD,
            )
        return cls(
            name=str(folder),
            mode=mode,
            sample_rate=constants["sample_rate"],
            # The encoder's second convolution halves the frames that are then joined.
            step=2 * constants["downsample_factor"] * constants["hop_length"],
            delay_tokens=constants["delay_tokens"],
            max_seq_len=constants["max_seq_len"],
            constants=constants,
            preprocess=_program(folder / PREPROCESSOR).method("forward"),
            methods=_methods(program, mode),
            tokens=tokens,
            vocabulary=vocabulary,
        )

    @property
    def token_s(self) -> float:
        """Seconds a token."""
        return self.step / self.sample_rate

    def require(self, mode: Mode) -> None:
        """Refuse to be run in another mode than it was built for."""
        if self.mode != mode:
            raise BuildError(
                f"{self.name} cannot be used for {mode} transcription",
                got=f"an {self.mode} artifact: its encoder "
                + (
                    "takes whole recordings"
                    if self.mode == "offline"
                    else "takes 80 ms at a time, and its decoder keeps a window"
                ),
                allowed=f"an artifact whose name ends in -{mode}",
                next_step=f"build one with `mode: [{mode}]` in config/matrix.yaml",
            )

    def claim(self, user: object) -> None:
        """Start an utterance of `user`; one that another had not ended is lost."""
        self._user = user

    def check_claim(self, user: object) -> None:
        """See that no other utterance was started since: it would share the caches."""
        if self._user is not user:
            raise BuildError(
                f"{self.name} is in use by another session",
                got="an utterance that was interrupted by another one's",
                allowed="one utterance at a time",
                next_step="load the artifact once more for a second session, or call reset() "
                "to start again",
            )


def _methods(program: Program, mode: Mode) -> Methods:
    encoder, _, _ = METHODS_OF[mode]
    encode = program.method(encoder)
    dtype, _ = program.first_input(encoder)

    def encode_mel(mel: Tensor, *rest: Tensor) -> Tensor:
        return encode(mel.to(dtype), *rest)

    _, (_, decode_bound, _) = program.first_input("text_decoder")
    return Methods(
        encode_mel,
        program.method("token_embedding"),
        program.method("text_decoder"),
        decode_bound,
    )


def _check_delegates(model: Path) -> None:
    """Refuse a program with delegates that this runtime cannot run: it would only say so later."""
    methods = describe(model).methods.values()
    lacking = [
        name
        for name in dict.fromkeys(name for method in methods for name in method.delegates)
        if not has_delegate(name)
    ]
    if lacking:
        raise BuildError(
            f"{model} cannot be run on this machine",
            got=f"ExecuTorch's runtime without {', '.join(lacking)}",
            allowed="a runtime that has the backend that the program was lowered for",
            next_step="docs/BACKENDS.md says where each backend runs; take one that runs here",
        )


def _program(path: Path, data: Path | None = None) -> Program:
    try:
        return Program(path, data)
    except RuntimeError as error:
        raise PteError(
            f"{path} can't be loaded",
            got=error,
            allowed="a program of this ExecuTorch's version",
            next_step=_REBUILD,
        ) from None


def _check_files(folder: Path) -> Path | None:
    """Check all files; returns that of the model's data, where there is one."""
    _check_presence(folder, (MANIFEST, MODEL, PREPROCESSOR, TOKENIZER))
    files = Manifest.load(folder / MANIFEST).files
    for name in (MODEL, PREPROCESSOR, TOKENIZER):
        if name not in files:
            raise BuildError(
                f"{folder / MANIFEST} does not say what {name} has to be",
                got=", ".join(files),
                allowed="its size and hash under subject",
                next_step=_REBUILD,
            )
    for name in (PREPROCESSOR, TOKENIZER):
        _check_file(folder / name, files[name])
    paired = DATA in files
    _check_file(folder / MODEL, files[MODEL], by_hash=paired)
    if not paired:
        return None
    _check_presence(folder, (DATA,))
    _check_file(folder / DATA, files[DATA])
    return folder / DATA


def _check_presence(folder: Path, names: Sequence[str]) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        raise BuildError(
            f"{folder} is no artifact: {', '.join(missing)} missing",
            got=", ".join(there[:10]) or ("an empty folder" if folder.is_dir() else "no folder"),
            allowed="a folder that `snakemake` made in artifacts/, whole",
            next_step="build it, or give the artifact's folder itself",
        )


def _check_file(path: Path, expected: FileRecord, *, by_hash: bool = True) -> None:
    size = path.stat().st_size
    got = f"{size:,} bytes"
    allowed = f"{expected.bytes:,} bytes"
    same = size == expected.bytes
    if same and by_hash:
        digest = sha256(path)
        same = digest == expected.sha256
        got, allowed = f"sha256 {digest}", f"sha256 {expected.sha256}"
    if not same:
        raise BuildError(
            f"{path} is not the file that the artifact was made with",
            got=got,
            allowed=f"{allowed}, as {MANIFEST} has it",
            next_step=f"copy the artifact's folder whole, or {_REBUILD}",
        )
