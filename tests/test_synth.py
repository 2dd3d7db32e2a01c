"""Synthetic checkpoints, read by the libraries that read real ones."""

from __future__ import annotations

import pytest
import torch
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from safetensors.torch import load_file

from tests.models import ONE_LAYER, checkpoint
from voxtral_build.errors import CheckpointError
from voxtral_build.steps import synth
from voxtral_build.tensor_file import read_header, write_tensors
from voxtral_build.tokenizer import StreamingTokens
from voxtral_build.weights import check


def test_the_same_seed_gives_the_same_bytes_and_another_others(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        synth.run(size="toy", seed=seed, output=tmp_path / name)
    a, b, c = ((tmp_path / name / "consolidated.safetensors").read_bytes() for name in "abc")
    assert a == b
    assert a != c
    check(tmp_path / "a")


def test_weights_are_bf16_and_sane():
    for key, tensor in load_file(checkpoint(ONE_LAYER) / "consolidated.safetensors").items():
        assert tensor.dtype == torch.bfloat16
        assert torch.isfinite(tensor).all(), key
        assert 0 < float(tensor.float().std()) < 1


def test_mistral_common_reads_the_tokenizer():
    path = checkpoint(ONE_LAYER) / "tekken.json"
    tekken = Tekkenizer.from_file(path)
    assert tekken.n_words == 1280
    text = "ask not what \N{SNOWMAN}"
    ids = tekken.encode(text, bos=False, eos=False)
    assert tekken.decode(ids) == text
    tokens = StreamingTokens.load(path)
    assert tokens.bos == tekken.bos_id
    assert tokens.streaming_pad == tekken.get_special_token("[STREAMING_PAD]")
    assert tokens.prompt(6) == [tokens.bos] + 38 * [tokens.streaming_pad]


def test_an_unknown_size_is_refused(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        synth.run(size="huge", seed=0, output=tmp_path / "out")
    assert caught.value.allowed == "toy, mid, full"
    assert not (tmp_path / "out").exists()


def test_a_file_that_was_not_finished_is_not_there(tmp_path):
    path = tmp_path / "weights"
    announced = {"a": ("F32", (2,)), "b": ("F32", (1,))}
    with (
        pytest.raises(ValueError, match="b was announced"),
        write_tensors(path, announced, {}) as w,
    ):
        w.add("a", [bytes(8)])
    with pytest.raises(ValueError, match="7 bytes"), write_tensors(path, announced, {}) as w:
        w.add("a", [bytes(7)])
    assert list(tmp_path.iterdir()) == []
    with write_tensors(path, announced, {"note": "x"}) as writer:
        writer.add("a", [bytes(4), bytes(4)])
        writer.add("b", [bytes(4)])
    assert load_file(path)["a"].shape == (2,)
    assert read_header(path).metadata == {"note": "x"}
