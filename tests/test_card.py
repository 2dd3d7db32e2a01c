"""Model cards say what reports say, whatever is in them, and the Hub can read them."""

import ast
import importlib
import inspect
import itertools
import math
import re
import shlex

import pytest
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.utils import validate_repo_id
from markdown_it import MarkdownIt

from tests import catalogs
from voxtral_build.catalog.card import artifact_card, base_model, repository_card
from voxtral_build.catalog.entries import Catalog, Checkpoint, Entry
from voxtral_build.checkpoint import REPOSITORY
from voxtral_build.errors import BuildError

REVISION = "2769294da9567371363522aac9bbcfdd19447add"
HOSTILE = (
    "a | b",
    "`x` ``y",
    "x\n---\ny: z",
    "\n```\n# heading\n\n| a |\n| --- |\n",
    "<script>alert(1)</script></td><!-- ",
    "*b* _i_ [text](target) ![image](target) ~~s~~",
    r"\| \` \\|",
    "{{ 7 * 7 }}{% if x %} &lt;",
    '"; rm -rf ~ #\r\u2028---\u2028\x00\u202e',
    "---",
)
# DEFINE_* of examples/models/voxtral_realtime/main.cpp in ExecuTorch.
RUNNER_FLAGS = {
    *("model_path", "data_path", "tokenizer_path", "preprocessor_path", "audio_path"),
    *("temperature", "streaming", "mic", "mic_chunk_ms"),
}


def entries(count=48, seed=0, mode=None):
    """Validated ones of a random catalog."""
    return [
        entry
        for entry in catalogs.catalog(count, seed).entries
        if entry.status == "validated" and mode in (None, entry.mode)
    ]


def changed(entry, **values):
    """The entry with other values, `report__words` for one of its report."""
    data = entry.model_dump()
    for path, value in values.items():
        *parents, name = path.split("__")
        part = data
        for parent in parents:
            part = part[parent]
        part[name] = value
    return type(entry).model_validate(data)


def from_the_hub(entry):
    return changed(
        entry,
        provenance__checkpoint__name=REPOSITORY,
        provenance__checkpoint__revision=REVISION,
    )


def body(card):
    return ModelCard(card).text


def tokens(card):
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(body(card))


def text_of(inline):
    return "".join(child.content or " " * (child.type == "softbreak") for child in inline.children)


def tables(card):
    """Every table: its rows, of these the texts of the cells."""
    found, row = [], None
    stream = tokens(card)
    for token, following in itertools.pairwise(stream):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            row = []
            found[-1].append(row)
        elif token.type in ("th_open", "td_open"):
            row.append(text_of(following))
    return found


def table(card, first_heading):
    (found,) = [rows for rows in tables(card) if rows[0][0] == first_heading]
    return found


def facts(card):
    """What tables of two columns without headings say."""
    return {row[0]: row[1] for rows in tables(card) if rows[0] == ["", ""] for row in rows[1:]}


def fences(card, language):
    blocks = [token for token in tokens(card) if token.type == "fence"]
    return [block.content for block in blocks if block.info == language]


def outline(card):
    """What a reader sees of the structure; plain text and code are alike in it."""
    stream = tokens(card)
    return (
        [(token.type, token.tag, token.info) for token in stream],
        [
            child.type
            for token in stream
            for child in token.children or []
            if child.type not in ("text", "code_inline")
        ],
        [[len(row) for row in rows] for rows in tables(card)],
    )


def shows(text, value, scale=1.0):
    """Whether the first number in a text is the value, to the digits that are there."""
    number = re.match(r"-?[\d,]+(?:\.(\d+))?(?:e([+-]\d+))?", text)
    assert number, text
    shown = float(number[0].replace(",", ""))
    unit = 10.0 ** (int(number[2] or 0) - len(number[1] or ""))
    return abs(shown - value / scale) <= unit * 0.5000001


def poisoned(data, poison):
    """Every text of a report and its entry, names included, with something in it."""
    if isinstance(data, str):
        return data if data in ("validated", "none") else f"{data}{poison}"
    if isinstance(data, dict):
        # Fields are names that the models know; other keys are data.
        kept = {"files", "versions", "settings", "methods", "delegates", "operators", "clips"}
        kept |= {"dependencies", "host", "left_as_is"}
        return {
            key: {f"{name}{poison}": poisoned(item, poison) for name, item in value.items()}
            if key in kept and isinstance(value, dict)
            else poisoned(value, poison)
            for key, value in data.items()
        }
    if isinstance(data, list):
        return [poisoned(item, poison) for item in data]
    return data


def poison(entry, text):
    return Entry.model_validate(poisoned(entry.model_dump(), text))


# --- front matter ------------------------------------------------------------------------


def test_the_hub_reads_the_front_matter():
    for entry in entries():
        data = ModelCard(artifact_card(entry)).data
        assert data.license == "unknown"
        assert ModelCard(artifact_card(from_the_hub(entry))).data.license == "apache-2.0"
        assert data.library_name == "executorch"
        assert data.pipeline_tag == "automatic-speech-recognition"
        assert {"executorch", "voxtral", entry.backend, entry.mode} <= set(data.tags)
        kinds = {entry.encoder, entry.decoder, entry.embedding} - {"none"}
        assert {kind.split(".")[0] for kind in kinds} <= set(data.tags)
        assert ("streaming" in data.tags) == (entry.mode == "streaming")
        assert "none" not in data.tags
        assert data.language is None
        (result,) = data.eval_results
        assert data.model_name == entry.variant
        assert result.task_type == "automatic-speech-recognition"
        assert result.metric_type == "wer"
        assert shows(str(result.metric_value), 100 * entry.report.words.rate)
        assert result.dataset_type
        assert str(entry.report.words.spoken) in result.dataset_config


def test_a_repository_has_the_word_errors_of_all_its_variants():
    catalog = catalogs.catalog(30)
    data = ModelCard(repository_card(catalog)).data
    shown = {result.metric_name: result.metric_value for result in data.eval_results}
    assert len(shown) == len(data.eval_results) == len(entries(30))
    for entry in entries(30):
        (value,) = [value for name, value in shown.items() if name.endswith(f" {entry.variant}")]
        assert shows(str(value), 100 * entry.report.words.rate)
        assert entry.backend in data.tags
        assert entry.mode in data.tags


@pytest.mark.parametrize("hub", [False, True])
def test_metadata_are_the_hubs(hub):
    from transformers.modelcard import METRIC_TAGS, TASK_TAG_TO_NAME_MAPPING

    known = {*inspect.signature(ModelCardData).parameters, "model-index", "base_model_relation"}
    entry = from_the_hub(entries()[1]) if hub else entries()[1]
    for card in (artifact_card(entry), repository_card(Catalog(entries=[entry]))):
        data = ModelCard(card).data.to_dict()
        assert data.keys() <= known
        assert data["pipeline_tag"] in TASK_TAG_TO_NAME_MAPPING
        assert data["metrics"] == ["wer"]
        assert {"wer"} <= set(METRIC_TAGS)
        (index,) = data["model-index"]
        (result,) = index["results"]
        assert result["task"]["name"] == TASK_TAG_TO_NAME_MAPPING[result["task"]["type"]]
        assert result["dataset"].keys() >= {"name", "type"}
        if hub:
            validate_repo_id(data["base_model"])


@pytest.mark.parametrize(
    ("name", "revision", "base"),
    [
        (REPOSITORY, REVISION, REPOSITORY),
        (REPOSITORY, None, None),
        ("someone/voxtral-finetuned", REVISION, "someone/voxtral-finetuned"),
        ("Voxtral-Mini-4B-Realtime-2602", REVISION, None),
        ("someone/x\nlicense: mit", REVISION, None),
        ("", REVISION, None),
        (None, None, None),
    ],
)
def test_a_base_model_is_claimed_only_of_the_hub(name, revision, base):
    files = {"consolidated.safetensors": {"bytes": 1, "sha256": "0" * 64}}
    checkpoint = {"name": name, "revision": revision, "files": files}
    assert base_model(Checkpoint.model_validate(checkpoint)) == base
    entry = changed(entries()[-1], provenance__checkpoint=checkpoint)
    for card in (artifact_card(entry), repository_card(Catalog(entries=[entry]))):
        assert ModelCard(card).data.to_dict().get("base_model") == base
        assert ("not known to be a model on the Hub" in " ".join(body(card).split())) == (
            base is None
        )


def test_a_checkpoint_without_a_name_is_known_by_its_weights():
    entry = changed(entries()[0], provenance__checkpoint__name=None)
    digest = entry.provenance.checkpoint.files["consolidated.safetensors"].sha256
    for card in (artifact_card(entry), repository_card(Catalog(entries=[entry]))):
        assert digest in body(card).split("##")[0]
        assert "None" not in card


def test_the_relation_is_quantized_only_where_something_is():
    plain = from_the_hub(next(entry for entry in entries() if entry.encoder == "none"))
    quantized = from_the_hub(next(entry for entry in entries() if entry.encoder != "none"))
    assert "base_model_relation" not in ModelCard(artifact_card(plain)).data
    assert ModelCard(artifact_card(quantized)).data["base_model_relation"] == "quantized"
    both = ModelCard(repository_card(Catalog(entries=[plain, quantized]))).data
    assert both["base_model"] == REPOSITORY
    assert both["base_model_relation"] == "quantized"
    assert "base_model" not in artifact_card(entries()[0])
    assert "base_model" not in repository_card(catalogs.catalog(12))


def test_one_variant_of_another_origin_and_a_repository_claims_no_base():
    mixed = Catalog(entries=[from_the_hub(entries()[0]), entries()[1]])
    assert "base_model" not in repository_card(mixed)
    assert REPOSITORY in body(repository_card(mixed))


# --- figures -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_figures_of_an_artifact_are_the_reports(seed):
    for entry in entries(seed=seed):
        card, report = artifact_card(entry), entry.report
        told, speed = facts(card), report.speed
        divergence = "Kullback-Leibler divergence from the float32 model, mean"
        for name, value, scale in (
            ("size", sum(file.bytes for file in entry.files.values()), 1e6),
            ("word error rate on the clip set", report.words.rate, 0.01),
            ("that of the float32 model", report.words.rate_float32, 0.01),
            (divergence, report.against_float32.divergence, 1),
            (
                "positions with the float32 model's likeliest token",
                report.against_float32.top1_agreement,
                0.01,
            ),
            ("a step, median", speed.step_ms_median, 1),
            ("a step, 95th percentile", speed.step_ms_p95, 1),
            ("real-time factor", speed.real_time_factor, 1),
            ("load, until every method has run once", speed.load_s, 1),
            ("peak memory of the process", speed.peak_rss_bytes, 1e6),
            ("of it Python and libraries", speed.libraries_rss_bytes, 1e6),
        ):
            assert shows(told[name], value, scale), (name, told[name], value)
        measured, promised = told["bits per weight, in the file / promised by the scheme"].split(
            " / "
        )
        assert shows(measured, report.bits_per_weight)
        assert shows(promised, report.promised_bits_per_weight)
        assert speed.machine.processor in told["measured on"]
        assert f"{speed.machine.cores} cores" in told["measured on"]
        assert f"{report.words.spoken} words" in body(card)


def test_gates_are_told_with_figure_bound_and_reason():
    for entry in entries():
        rows = table(artifact_card(entry), "gate")[1:]
        assert [row[0] for row in rows] == [outcome.gate for outcome in entry.report.gates]
        for row, outcome in zip(rows, entry.report.gates, strict=True):
            if outcome.figure is None:
                assert row[1] == outcome.detail
            else:
                assert shows(row[1], outcome.figure)
            for word, bound in (("least", outcome.min), ("most", outcome.max)):
                told = re.search(rf"{word} (\S+)", row[2])
                assert (told is None) == (bound is None)
                assert bound is None or shows(told[1], bound)
            assert row[3] == outcome.reason


def test_methods_are_told():
    for entry in entries():
        rows = table(artifact_card(entry), "method")[1:]
        assert [row[0] for row in rows] == [*entry.report.methods]
        for row, method in zip(rows, entry.report.methods.values(), strict=True):
            told = dict(re.findall(r"(\d+) (\w+)", row[1]))
            assert told == {str(count): name for name, count in method.delegates.items()}
            assert row[2] == str(method.undelegated_linears)
            assert shows(row[3], method.planned_bytes, 1e6)
            measured, promised = row[4].split(" / ")
            assert shows(measured, method.bits_per_weight)
            assert shows(promised, method.promised_bits_per_weight)
            assert shows(row[5], method.positions)
            ring = method.ring_slots
            assert row[5].endswith("positions" if ring is None else f", a ring of {ring}")
            assert shows(row[6], method.parity.max_abs_difference)
            assert shows(row[7], method.parity.max_abs_output)
            assert shows(row[8], method.parity.cosine)


def test_provenance_is_told():
    entry = changed(entries()[0], provenance__left_as_is={"encoder": ["layers.0.wq"]})
    provenance, card = entry.provenance, artifact_card(entry)
    rows = {row[0]: row[1:] for row in table(card, "file")[1:]}
    assert rows.pop("manifest.json")[1] == provenance.manifest_sha256
    assert rows == {name: [str(file.bytes), file.sha256] for name, file in entry.files.items()}
    text = body(card)
    for files in (provenance.checkpoint.files, provenance.dependencies):
        for name, file in files.items():
            assert name in text
            assert file.sha256 in text
    told = facts(card)
    assert provenance.source.commit in told["voxtral-build"]
    assert "differed" not in told["voxtral-build"]
    assert "max_seq_len 1024" in told["settings"]
    assert "executorch 1.5.1" in told["versions"]
    assert "layers.0.wq" in told["not quantized in encoder"]
    modified = changed(entry, provenance__source__modified=True)
    assert "differed" in facts(artifact_card(modified))["voxtral-build"]


@pytest.mark.parametrize("seed", range(3))
def test_figures_of_a_repository_are_the_reports(seed):
    catalog = catalogs.catalog(48, seed)
    headings, *rows = tables(repository_card(catalog))[0]
    validated = entries(seed=seed)
    assert [row[0] for row in rows] == [entry.variant for entry in validated]
    for row, entry in zip(rows, validated, strict=True):
        told, report = dict(zip(headings, row, strict=True)), entry.report
        for name, value, scale in (
            ("size", entry.size_bytes, 1e6),
            ("WER", report.words.rate, 0.01),
            ("WER, float32", report.words.rate_float32, 0.01),
            ("KL", report.against_float32.divergence, 1),
            ("top-1", report.against_float32.top1_agreement, 0.01),
            ("step", report.speed.step_ms_median, 1),
            ("step, p95", report.speed.step_ms_p95, 1),
            ("real-time factor", report.speed.real_time_factor, 1),
            ("load", report.speed.load_s, 1),
            ("peak memory", report.speed.peak_rss_bytes, 1e6),
        ):
            assert shows(told[name], value, scale), (name, told[name], value)


def test_variants_link_to_their_cards():
    card = repository_card(catalogs.catalog(30))
    links = [
        child.attrs["href"]
        for token in tokens(card)
        for child in token.children or []
        if child.type == "link_open" and not child.attrs["href"].startswith("https:")
    ]
    assert links == [f"{entry.backend}/{entry.variant}/README.md" for entry in entries(30)]


@pytest.mark.parametrize("seed", range(5))
def test_the_choice_is_the_best_of_its_mode(seed):
    validated = entries(seed=seed)
    rows = table(repository_card(catalogs.catalog(48, seed)), "mode")[1:]
    assert {row[0] for row in rows} == {"offline", "streaming"}
    for mode, *chosen in rows:
        of_mode = [entry for entry in validated if entry.mode == mode]
        for cell, figure in zip(
            chosen,
            (
                lambda entry: entry.size_bytes,
                lambda entry: entry.report.against_float32.divergence,
                lambda entry: entry.report.speed.real_time_factor,
            ),
            strict=True,
        ):
            best = min(figure(entry) for entry in of_mode)
            (entry,) = [entry for entry in of_mode if entry.variant == cell.split(",")[0]]
            assert figure(entry) == best


def test_what_is_not_there_is_told_with_its_reason():
    catalog = catalogs.catalog(48)
    rows = {row[0]: row[1:] for row in tables(repository_card(catalog))[-1][1:]}
    absent = [entry for entry in catalog.entries if entry.status != "validated"]
    assert [*rows] == [entry.variant for entry in absent]
    for entry in absent:
        status, why = rows[entry.variant]
        assert status == entry.status
        if entry.status == "failed":
            assert "divergence" in why
            assert "token_agreement" not in why
        elif entry.status == "built":
            assert "not validated" in why
        elif entry.host != "any":
            assert entry.host in why


def test_times_of_different_machines_are_told_so():
    first, second = entries()[:2]
    other = changed(second, report__speed__machine__processor="Another")
    one = body(repository_card(Catalog(entries=[first, second])))
    two = body(repository_card(Catalog(entries=[first, other])))
    assert "different machines" not in one
    assert "different machines" in two
    assert "Another" in two


def test_what_was_not_measured_is_not_told():
    first, second = entries()[:2]
    parts = ("words", "speed", "against_float32", "speech")
    bare = changed(first, **{f"report__{part}": None for part in parts})
    card = artifact_card(bare)
    assert "eval_results" not in ModelCard(card).data.to_dict()
    assert "model-index" not in card
    assert "a step, median" not in facts(card)
    assert "No words were counted" in card
    row = tables(repository_card(Catalog(entries=[bare, second])))[0][1]
    assert row[3:] == ["–"] * 9
    # What has no figure is no best one.
    chosen = table(repository_card(Catalog(entries=[bare])), "mode")[1]
    assert chosen[2:] == ["–", "–"]


def test_figures_that_are_no_numbers_are_told_and_win_nothing():
    first, second = entries(mode="offline")[:2]
    broken = changed(first, report__against_float32__divergence=math.nan)
    card = repository_card(Catalog(entries=[broken, second]))
    assert table(card, "mode")[1][2].startswith(second.variant)
    told = facts(artifact_card(broken))
    assert told["Kullback-Leibler divergence from the float32 model, mean"].startswith("not finite")


def test_a_repository_of_nothing_says_so():
    catalog = Catalog(
        entries=[entry for entry in catalogs.catalog(20).entries if entry.status != "validated"]
    )
    card = repository_card(catalog)
    assert "None is validated." in card
    assert len(tables(card)) == 1
    assert ModelCard(card).data.eval_results is None


# --- use ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["offline", "streaming"])
def test_the_python_is_code_and_names_what_exists(mode):
    entry = entries(mode=mode)[0]
    (code,) = fences(artifact_card(entry), "python")
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
        else:
            assert not isinstance(node, ast.Import)
    (folder,) = [
        node.args[0].args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Artifact.load"
    ]
    assert folder == entry.variant


@pytest.mark.parametrize("mode", ["offline", "streaming"])
def test_the_python_transcribes(mode, monkeypatch, capsys):
    """With stand-ins of the artifact, which need no program: in what order it calls what."""
    from types import SimpleNamespace

    from voxtral_build import sound
    from voxtral_build.runtime import artifact, session

    class Session:
        def __init__(self, loaded):
            assert loaded is stand_in

        def feed_audio(self, samples):
            return [SimpleNamespace(id=len(samples))]

        def flush(self):
            return [SimpleNamespace(id=99)]

        def transcribe(self, samples):
            assert len(samples) == 25
            yield SimpleNamespace(id=7)

    words = {10: b"ten ", 5: b"five ", 99: b"end", 7: b"seven"}
    stand_in = SimpleNamespace(
        sample_rate=16000,
        step=10,
        vocabulary=SimpleNamespace(
            piece=words.__getitem__,
            text=lambda ids: "".join(words[token].decode() for token in ids),
        ),
    )
    monkeypatch.setattr(artifact.Artifact, "load", lambda _: stand_in)
    monkeypatch.setattr(session, "StreamingSession", Session)
    monkeypatch.setattr(session, "OfflineSession", Session)
    monkeypatch.setattr(sound, "read", lambda *_: SimpleNamespace(samples=[0.0] * 25))
    (code,) = fences(artifact_card(entries(mode=mode)[0]), "python")
    exec(compile(code, "card", "exec"), {"__name__": "card"})
    written = capsys.readouterr().out
    assert written == {"streaming": "ten ten five end\n", "offline": "seven\n"}[mode]


@pytest.mark.parametrize("mode", ["offline", "streaming"])
def test_commands_have_the_flags_that_there_are(mode):
    entry = entries(mode=mode)[0]
    scripts = fences(artifact_card(entry), "sh")
    (runner,) = [shlex.split(script) for script in scripts if "voxtral_realtime_runner" in script]
    flags = [word.removeprefix("--") for word in runner if word.startswith("--")]
    assert set(flags) <= RUNNER_FLAGS
    assert {"model_path", "tokenizer_path", "preprocessor_path", "audio_path"} <= set(flags)
    assert ("streaming" in flags) == (mode == "streaming")
    assert "data_path" not in flags
    for flag, name in (
        ("model_path", "model.pte"),
        ("tokenizer_path", "tekken.json"),
        ("preprocessor_path", "preprocessor.pte"),
    ):
        path = runner[runner.index(f"--{flag}") + 1]
        assert path == f"{entry.variant}/{name}"
        assert name in entry.files
    (use,) = [script for script in scripts if "voxtral-build transcribe" in script]
    assert ("--stream" in use.split()) == (mode == "streaming")
    assert any(
        shlex.split(script) == ["voxtral-build", "verify", entry.variant] for script in scripts
    )


def test_a_delegates_data_is_given_to_the_runner():
    entry = entries()[0]
    data = {"bytes": 1, "sha256": "0" * 64}
    files = {**entry.model_dump()["files"], "aoti_cuda_blob.ptd": data}
    with_data = changed(entry, files=files)
    assert f"--data_path {entry.variant}/aoti_cuda_blob.ptd" in artifact_card(with_data)


def test_the_download_takes_one_variant():
    script, other = fences(repository_card(catalogs.catalog(30)), "sh")
    pull, transcribe = map(shlex.split, script.splitlines())
    assert pull[:3] == ["voxtral-build", "pull", "$REPO"]
    chosen = [entry for entry in entries(30) if entry.variant == pull[3]]
    assert len(chosen) == 1
    assert transcribe[2] == pull[3]
    (download,) = map(shlex.split, other.splitlines())
    assert download[:4] == ["hf", "download", "$REPO", "--include"]
    assert download[4] == f"{chosen[0].backend}/{chosen[0].variant}/*"


# --- hostile text, and refusals ----------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("mode", ["offline", "streaming"])
def test_no_text_changes_the_structure(text, mode):
    for entry in entries(mode=mode)[:4]:
        harmless, hostile = poison(entry, "x"), poison(entry, text)
        assert outline(artifact_card(hostile)) == outline(artifact_card(harmless))
        data = ModelCard(artifact_card(hostile)).data
        assert data.to_dict().keys() == ModelCard(artifact_card(harmless)).data.to_dict().keys()
        assert data.license == "unknown"


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_changes_a_repositorys_structure(text):
    catalog = catalogs.catalog(24)
    harmless, hostile = (
        repository_card(
            Catalog(
                entries=[
                    poison(entry, added)
                    if entry.status == "validated"
                    else changed(entry, variant=f"{entry.variant}{added}", host=f"CUDA{added}")
                    for entry in catalog.entries
                ]
            )
        )
        for added in ("x", text)
    )
    assert outline(hostile) == outline(harmless)
    assert ModelCard(hostile).data.to_dict().keys() == ModelCard(harmless).data.to_dict().keys()


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_shown_as_it_is(text):
    entry = entries()[0]
    gates = [outcome.model_dump() for outcome in entry.report.gates]
    gates[0]["reason"] = f"so {text} it"
    gates[0]["gate"] = f"gate {text} it"
    card = artifact_card(changed(entry, report__gates=gates))
    row = table(card, "gate")[1]
    visible = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    assert row[3] == f"so {visible} it"
    assert row[0] == f"gate {visible} it"
    assert not [kind for kind in outline(card)[1] if kind.startswith("html")]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_runs_in_a_shell(text):
    entry = changed(entries()[0], variant=f"v {text}")
    flat = " ".join("".join(c if c.isprintable() else " " for c in f"v {text}").split())
    scripts = fences(artifact_card(entry), "sh")
    assert [shlex.split(script) for script in scripts if "verify" in script] == [
        ["voxtral-build", "verify", flat]
    ]
    (code,) = fences(artifact_card(entry), "python")
    values = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
    assert flat in values


def test_long_text_is_clipped():
    gates = [outcome.model_dump() for outcome in entries()[0].report.gates]
    gates[0]["reason"] = "word " * 10_000
    row = table(artifact_card(changed(entries()[0], report__gates=gates)), "gate")[1]
    assert len(row[3]) <= 300
    assert row[3].endswith("…")


@pytest.mark.parametrize("status", ["failed", "built", "not built"])
def test_what_is_not_validated_gets_no_card(status):
    entry = next(entry for entry in catalogs.catalog(24).entries if entry.status == status)
    with pytest.raises(BuildError) as refusal:
        artifact_card(entry)
    assert entry.variant in refusal.value.what
    assert status in refusal.value.got
    assert "validated" in refusal.value.allowed
    assert entry.variant in refusal.value.next_step
    if status == "failed":
        assert "divergence" in refusal.value.got


@pytest.mark.parametrize(
    ("change", "got"),
    [
        ({"report": None}, "no report"),
        ({"provenance": None}, "no manifest"),
        ({"report__status": "failed"}, "says otherwise"),
        ({"report__manifest_sha256": "0" * 64}, "another manifest"),
    ],
)
def test_an_entry_that_contradicts_itself_gets_no_card(change, got):
    entry = changed(entries()[0], **change)
    for card in (lambda: artifact_card(entry), lambda: repository_card(Catalog(entries=[entry]))):
        with pytest.raises(BuildError) as refusal:
            card()
        assert got in refusal.value.got


def test_a_gate_that_failed_in_a_validated_report_is_refused():
    gates = [outcome.model_dump() for outcome in entries()[0].report.gates]
    gates[0]["passed"] = False
    with pytest.raises(BuildError, match="token_agreement"):
        artifact_card(changed(entries()[0], report__gates=gates))
